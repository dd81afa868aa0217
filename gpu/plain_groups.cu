// Blocks of 128 rows by 192 outputs: two warp groups multiply, one copies.
#include "gpu/async_copy.cuh"
#include "gpu/copy_ring.cuh"
#include "gpu/cuda_check.cuh"
#include "gpu/plain_product.cuh"
#include "gpu/wgmma.cuh"

#include <algorithm>

namespace troupe {
namespace {

constexpr int group = 128, readers = 2, threads = (readers + 1) * group;
constexpr int block_rows = 64 * readers, block_outs = 192, depth = 64, stages = 4;
constexpr int row_pieces = depth * 4 / 16, out_pieces = depth * 2 / 16; // of 16 bytes

// x: the piece c of row r at place c ^ 2 (r & 3), so that sixteen lanes which read two pieces of four rows meet every
// bank once. w: see wgmma::descriptor.
struct groups_shared {
  float4 x[stages][block_rows * row_pieces];
  uint4 w[stages][block_outs * out_pieces];
  uint64_t full[stages], empty[stages];
};
constexpr int shared_bytes = sizeof(groups_shared) + 1024; // 1024: alignment
static_assert(shared_bytes <= 227 << 10 && sizeof(groups_shared::x) % 1024 == 0);

#if defined(TROUPE_WGMMA)

// 16 bytes, of which `n` are read and the rest is zero.
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, int n) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n) : "memory");
}

// Rows past the last are the last one again, outputs too: nobody stores what they give. Copies of a stage are announced
// two stages later, when they have arrived and the tensor cores may see them.
__device__ void copy_stages(groups_shared& s, const plain_product& p, int64_t first_row, int first_out, int begin,
                            int end) {
  constexpr int behind = 2, x_step = group / row_pieces, w_step = group / out_pieces;
  const int tid = static_cast<int>(threadIdx.x) % group;
  const int x_row = tid / row_pieces, x_piece = tid % row_pieces, w_row = tid / out_pieces, w_piece = tid % out_pieces;
  const uint32_t x_to =
      shared_address(s.x[0]) + static_cast<uint32_t>(x_row * row_pieces + (x_piece ^ 2 * (x_row & 3))) * 16;
  const uint32_t w_to =
      shared_address(s.w[0]) + static_cast<uint32_t>(w_row * out_pieces + (w_piece ^ (w_row & 7))) * 16;
  static_assert(x_step % 4 == 0 && w_step % 8 == 0, "the places of pieces repeat");
  const auto* weights = static_cast<const uint16_t*>(p.m.weight);
  ring_place<stages> to, arrived;
  const auto announce = [&] {
    fence_barriers();
    arrive(&s.full[arrived.stage]);
    arrived.next();
  };
  int n = 0;
  for (int k = begin; k < end; k += depth, ++n) {
    wait(&s.empty[to.stage], to.round ^ 1);
    const int x_at = k + 4 * x_piece, w_at = k + 8 * w_piece;
    const int x_bytes = x_at < end ? 16 : 0, w_bytes = w_at < end ? 16 : 0;
#pragma unroll 4
    for (int i = 0; i < block_rows / x_step; ++i) {
      const int64_t row = min(first_row + x_row + i * x_step, p.rows - 1);
      copy_async(x_to + static_cast<uint32_t>(to.stage) * sizeof(s.x[0]) + i * x_step * row_pieces * 16,
                 p.x + row * p.x_stride + (x_bytes > 0 ? x_at : 0), x_bytes);
    }
#pragma unroll 4
    for (int i = 0; i < block_outs / w_step; ++i) {
      const int64_t out = min(first_out + w_row + i * w_step, p.out - 1);
      copy_async(w_to + static_cast<uint32_t>(to.stage) * sizeof(s.w[0]) + i * w_step * out_pieces * 16,
                 weights + out * p.in + (w_bytes > 0 ? w_at : 0), w_bytes);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (n >= behind) {
      asm volatile("cp.async.wait_group %0;" ::"n"(behind) : "memory");
      announce();
    }
    to.next();
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  for (int i = 0; i < min(n, behind); ++i) announce();
}

// acc (64 x 192) of the thread's warp group; it is split into parts in registers: 12 of them for 16 inputs, while the
// tensor cores are busy with what the other group has split.
__device__ __forceinline__ void multiply_stages(groups_shared& s, const plain_product& p, int64_t first_row,
                                                int first_out, int begin, int end) {
  const int tid = static_cast<int>(threadIdx.x) % group, lane = tid % 32, g = lane / 4, t = lane % 4;
  const int row = static_cast<int>(threadIdx.x) / group * 64 + tid / 32 * 16 + g;
  constexpr int n_sums = block_outs / 2;
  float acc[n_sums], total[n_sums];
  const uint32_t x_from = shared_address(s.x[0]) + static_cast<uint32_t>(row * row_pieces * 16 + t * 8);
  const uint32_t w_from = wgmma::descriptor(s.w[0]);
  ring_place<stages> at;
  for (int slice = begin; slice < end; slice += slice_inputs) {
#pragma unroll
    for (int i = 0; i < n_sums; ++i) acc[i] = 0;
    wgmma::settle(acc);
    const int slice_end = min(slice + slice_inputs, end);
#pragma unroll 1
    for (int k = slice; k < slice_end; k += depth) {
      wait(&s.full[at.stage], at.round);
      const uint32_t x = x_from + static_cast<uint32_t>(at.stage) * sizeof(s.x[0]);
      const uint32_t w = w_from + static_cast<uint32_t>(at.stage) * (sizeof(s.w[0]) >> 4);
#pragma unroll
      for (int step = 0; step < depth / 16; ++step) {
        uint32_t parts[4][n_parts]; // rows g, g + 8, then the same of inputs 8 further on
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float2 v;
          asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];"
                       : "=f"(v.x), "=f"(v.y)
                       : "r"(x + i % 2 * 8 * row_pieces * 16 + ((2 * step + i / 2) ^ (g & 3)) * 32)
                       : "memory");
          split_three(v.x, v.y, parts[i]);
        }
        wgmma::wait<0>(); // before registers of the parts before are written
        wgmma::fence();
#pragma unroll
        for (int part = 0; part < n_parts; ++part) {
          const uint32_t a[4] = {parts[0][part], parts[1][part], parts[2][part], parts[3][part]};
          wgmma::multiply_bf16(acc, a, w + 2 * step);
        }
        wgmma::commit();
      }
      wgmma::wait<0>();
      __syncwarp();
      if (lane == 0) arrive(&s.empty[at.stage]);
      at.next();
    }
    wgmma::settle(acc);
#pragma unroll
    for (int i = 0; i < n_sums; ++i) total[i] = slice == begin ? acc[i] : total[i] + acc[i];
  }
  float* y = p.y + blockIdx.z * p.slice_stride;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t r = first_row + row + 8 * half;
    if (r >= p.rows) break;
#pragma unroll
    for (int i = 0; i < n_sums / 2; ++i) {
      const int o = first_out + i / 2 * 8 + 2 * t + i % 2;
      if (o < p.out)
        y[r * p.y_stride + o] = total[i / 2 * 4 + 2 * half + i % 2] + (p.bias != nullptr ? p.bias[o] : 0.0F);
    }
  }
}

#endif

// Grid (tiles of outputs, tiles of rows, parts of the slices). Bound by tensor cores: three products of 96 clocks for
// 16 inputs of a group, 108 us for 8192 rows of 5120 to 384 at 1.7 GHz.
__global__ void __launch_bounds__(threads, 1) plain_groups_kernel(plain_product p) {
#if defined(TROUPE_WGMMA)
  extern __shared__ uint8_t memory[];
  auto& s = *reinterpret_cast<groups_shared*>(memory + (1024 - shared_address(memory) % 1024) % 1024);
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) {
      init_barrier(&s.full[i], group);
      init_barrier(&s.empty[i], readers * 4);
    }
    fence_barriers();
  }
  __syncthreads();
  const int first_out = static_cast<int>(blockIdx.x) * block_outs;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * block_rows;
  const int begin = static_cast<int>(blockIdx.z) * p.block_slices * slice_inputs;
  const int end = static_cast<int>(min(static_cast<int64_t>(p.in), begin + int64_t{p.block_slices} * slice_inputs));
  if (threadIdx.x >= readers * group) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    copy_stages(s, p, first_row, first_out, begin, end);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    multiply_stages(s, p, first_row, first_out, begin, end);
  }
#else
  __trap(); // cuda_lane::has_wgmma was wrong: the build has no code for sm_90a
#endif
}

} // namespace

bool plain_groups_serve(const plain_product& p, const cuda_lane& lane) {
  return lane.has_wgmma && p.m.how == plain_view::format::bf16 && p.in % 8 == 0 && p.x_stride % 4 == 0 &&
         reinterpret_cast<uintptr_t>(p.x) % 16 == 0 && reinterpret_cast<uintptr_t>(p.m.weight) % 16 == 0;
}

int64_t plain_groups_blocks(const plain_product& p) {
  return ((p.out + block_outs - 1) / block_outs) * ((p.rows + block_rows - 1) / block_rows);
}

void plain_groups_launch(const plain_product& p, int z, const cuda_lane& lane) {
  cuda_check(cudaFuncSetAttribute(plain_groups_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
             "plain_gemm");
  const dim3 grid(static_cast<unsigned>((p.out + block_outs - 1) / block_outs),
                  static_cast<unsigned>((p.rows + block_rows - 1) / block_rows), static_cast<unsigned>(z));
  plain_groups_kernel<<<grid, threads, shared_bytes, lane.on>>>(p);
  cuda_check_launch("plain_gemm: warp groups");
}

} // namespace troupe
