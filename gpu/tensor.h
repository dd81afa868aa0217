// A view of row-major memory: what every operation takes. A view owns nothing and must not outlive its buffer.
#pragma once

#include "storage/check.h"
#include "storage/dtype.h"

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace troupe {

struct tensor {
  std::byte* data = nullptr; // device memory of the backend that made it; host memory for the host backend
  dtype type = dtype::f32;
  int32_t rank = 0;
  int64_t shape[4] = {1, 1, 1, 1};

  tensor() = default;
  tensor(void* memory, dtype element, std::initializer_list<int64_t> dims)
      : data(static_cast<std::byte*>(memory)), type(element), rank(static_cast<int32_t>(dims.size())) {
    TROUPE_CHECK(dims.size() <= 4, "a tensor has at most four dimensions");
    int i = 0;
    for (int64_t d : dims) shape[i++] = d;
  }

  explicit operator bool() const { return data != nullptr; }
  int64_t n_elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
  int64_t size_bytes() const { return n_elements() * troupe::size_bytes(type); }
  int64_t rows() const { return rank == 0 ? 0 : shape[0]; }
  int64_t row_elements() const {
    return rows() == 0 ? 0 : n_elements() / rows();
  } // of one index of the first dimension

  template <class T> T* as() const { return reinterpret_cast<T*>(data); }
  float* f32() const { return as<float>(); }
  int32_t* i32() const { return as<int32_t>(); }
  int64_t* i64() const { return as<int64_t>(); }

  // Rows [first, first + n) of the first dimension.
  tensor slice(int64_t first, int64_t n) const {
    TROUPE_CHECK(rank > 0 && first >= 0 && n >= 0 && first + n <= shape[0], "a slice lies inside its tensor");
    tensor t = *this;
    t.data += first * row_elements() * troupe::size_bytes(type);
    t.shape[0] = n;
    return t;
  }
  tensor reshape(std::initializer_list<int64_t> dims) const {
    tensor t(data, type, dims);
    TROUPE_CHECK(t.n_elements() == n_elements(), "a reshape keeps the number of elements");
    return t;
  }
};

} // namespace troupe
