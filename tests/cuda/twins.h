// The same operation on the host's scalar twins and on the CUDA device, on equal inputs, side by side.
#pragma once

#include "gpu/backend.h"
#include "gpu/cache_rows.h"
#include "gpu/cuda_backend.h"
#include "gpu/formats.h"
#include "tests/near.h"

#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

namespace troupe::test {

inline std::vector<float> random_floats(int64_t n, unsigned seed, float spread = 1) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = normal(bits);
  return v;
}

// Rows of `dim` as the model rounds them, and their records.
inline std::vector<float> quantised(std::vector<float> rows, int64_t dim, quantiser how) {
  quantise_host(tensor(rows.data(), dtype::f32, {static_cast<int64_t>(rows.size()) / dim, dim}), how);
  return rows;
}
inline std::vector<uint8_t> records_of(const std::vector<float>& rows, int64_t dim, quantiser how) {
  const int64_t n = static_cast<int64_t>(rows.size()) / dim, bytes = record_bytes(how, dim);
  std::vector<uint8_t> records(static_cast<size_t>(n * bytes));
  for (int64_t i = 0; i < n; ++i)
    encode_record(reinterpret_cast<std::byte*>(records.data() + i * bytes), rows.data() + i * dim, dim, how);
  return records;
}

// A tensor on both sides.
struct twin_tensor {
  tensor host, device;
  twin_tensor slice(int64_t first, int64_t n) const { return {host.slice(first, n), device.slice(first, n)}; }
  twin_tensor reshape(std::initializer_list<int64_t> s) const { return {host.reshape(s), device.reshape(s)}; }
};

class twins {
public:
  explicit twins(int64_t scratch_bytes = 64 << 20)
      : host(make_host_backend({.n_threads = 1, .scalar_only = true})),
        device(make_cuda_backend({.scratch_bytes = scratch_bytes})) {}

  template <class T> twin_tensor make(dtype type, std::initializer_list<int64_t> shape, const std::vector<T>& values) {
    twin_tensor t{host->allocate(type, shape, "test"), device->allocate(type, shape, "test")};
    REQUIRE(static_cast<int64_t>(values.size() * sizeof(T)) == t.host.size_bytes());
    host->upload(t.host, values.data(), t.host.size_bytes());
    device->upload(t.device, values.data(), t.device.size_bytes());
    return t;
  }
  twin_tensor floats(std::initializer_list<int64_t> shape, unsigned seed, float spread = 1) {
    return make(dtype::f32, shape, random_floats(tensor(nullptr, dtype::f32, shape).n_elements(), seed, spread));
  }
  twin_tensor ints(std::initializer_list<int64_t> shape, const std::vector<int32_t>& v) {
    return make(dtype::i32, shape, v);
  }
  twin_tensor longs(std::initializer_list<int64_t> shape, const std::vector<int64_t>& v) {
    return make(dtype::i64, shape, v);
  }
  // An output: poisoned with NaN on both sides, so that what is not written shows.
  twin_tensor output(std::initializer_list<int64_t> shape, dtype type = dtype::f32) {
    const tensor like(nullptr, type, shape);
    return make(type, shape, std::vector<uint8_t>(static_cast<size_t>(like.size_bytes()), 0xFF));
  }

  template <class T = float> std::vector<T> read_device(const twin_tensor& t) {
    std::vector<T> v(static_cast<size_t>(t.device.size_bytes()) / sizeof(T));
    device->download(v.data(), t.device, t.device.size_bytes());
    return v;
  }
  template <class T = float> std::vector<T> read_host(const twin_tensor& t) {
    std::vector<T> v(static_cast<size_t>(t.host.size_bytes()) / sizeof(T));
    host->download(v.data(), t.host, t.host.size_bytes());
    return v;
  }

  // The same call for both; `op` gets a backend and picks its side with `of`.
  void run(const std::function<void(backend&)>& op) {
    op(*host);
    op(*device);
  }
  tensor of(backend& b, const twin_tensor& t) const { return &b == host.get() ? t.host : t.device; }

  // The comparisons print a line each for the table of etc/gpu-check.sh, which has a row for each kernel: the text of
  // `what` before its first comma; behind it is the case.
  // max |device - host| / max |host|.
  void near(const char* what, const twin_tensor& t, double bound) {
    const auto a = read_device(t), b = read_host(t);
    const double error = relative_error(a, b);
    MESSAGE(std::string(what) << ": max error " << error << ", bound " << bound);
    CHECK_MESSAGE(error <= bound, std::string(what));
  }
  // The same with sqrt(sum of squares) of both.
  void near_rms(const char* what, const twin_tensor& t, double bound) {
    const double error = rms_error(read_device(t), read_host(t));
    MESSAGE(std::string(what) << ": rms error " << error << ", bound " << bound);
    CHECK_MESSAGE(error <= bound, std::string(what));
  }
  // Bit for bit.
  void equal(const char* what, const twin_tensor& t) {
    const bool same = read_device<uint8_t>(t) == read_host<uint8_t>(t);
    MESSAGE(std::string(what) << ": " << std::string(same ? "equal bits" : "bits differ") << ", bound equal");
    CHECK_MESSAGE(same, std::string(what));
  }

  std::unique_ptr<backend> host, device;
};

} // namespace troupe::test
