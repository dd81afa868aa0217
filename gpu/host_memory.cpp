// One aligned allocation a block, a large one of pages of its own.
#include "gpu/host_memory.h"

#include <cstdint>
#include <cstdlib>
#include <fmt/format.h>
#include <sys/mman.h>
#include <system_error>
#include <utility>

namespace troupe {

namespace {

constexpr size_t large = 1 << 20;

// A large block is touched 2 MiB at a time, where the kernel has pages of that size: the first touches of a KV cache,
// 4 KiB each at 2 to 3 us in a virtual machine of 2 vCPU (2026-11-30), took half of the time in which a prefix came
// back from disk. The shipped model has 13 MB more resident for it.
void use_large_pages(std::byte* from, size_t n) {
  constexpr uintptr_t page = uintptr_t{2} << 20;
  const auto first = (reinterpret_cast<uintptr_t>(from) + page - 1) / page * page,
             end = (reinterpret_cast<uintptr_t>(from) + n) / page * page;
  if (end > first) (void)::madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE); // else small ones
}

} // namespace

host_memory::host_memory(memory_account& account, int64_t size_bytes, const std::string& what) {
  const auto fail = [&](const char* why) {
    throw std::system_error(std::make_error_code(std::errc::not_enough_memory),
                            fmt::format("{}: {} bytes wanted, {} of {} in use ({})", what, size_bytes,
                                        account.used_bytes, account.limit_bytes, why));
  };
  if (size_bytes < 0 || size_bytes > account.limit_bytes - account.used_bytes) fail("past the memory limit");
  const size_t rounded = (static_cast<size_t>(size_bytes) + 127) / 64 * 64; // never empty, a whole number of lines
  if (rounded >= large) {
    // The kernel's own zeros, untouched until they are used: a KV cache costs neither time nor memory before.
    void* const pages = ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) fail("the host has no more");
    base_ = pages;
    mapped_bytes_ = rounded;
    data_ = static_cast<std::byte*>(pages);
    use_large_pages(data_, rounded);
  } else {
    base_ = std::calloc(rounded + 64, 1);
    if (base_ == nullptr) fail("the host has no more");
    const auto address = reinterpret_cast<uintptr_t>(base_);
    data_ = static_cast<std::byte*>(base_) + ((address + 63) / 64 * 64 - address);
  }
  account_ = &account;
  size_bytes_ = size_bytes;
  account.used_bytes += size_bytes;
}

host_memory::host_memory(host_memory&& other) noexcept { *this = std::move(other); }

host_memory& host_memory::operator=(host_memory&& other) noexcept {
  std::swap(account_, other.account_);
  std::swap(base_, other.base_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

host_memory::~host_memory() {
  if (account_ != nullptr) account_->used_bytes -= size_bytes_;
  if (mapped_bytes_ > 0)
    ::munmap(base_, mapped_bytes_);
  else
    std::free(base_);
}

} // namespace troupe
