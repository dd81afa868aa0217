// What the reading warps of attention_prompt.cu do between two rows: queries in, sums out, as o or ready for products.
// For .cu files only.
#pragma once

#include "gpu/attention_prompt.cuh"
#include "gpu/gemm_rows.cuh"
#include "gpu/wgmma.cuh"

namespace troupe::device {

#if defined(TROUPE_WGMMA)

constexpr float lowest = -INFINITY;

__device__ __forceinline__ void readers_meet() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
__device__ __forceinline__ float power_of_two(float x) { // 2^-22 off; 0 for -inf
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A reading thread: its group, and in it the rows of sums that its quad has, `row` and `row + 8`. Scores are exponents
// of two here, not of e.
struct reader {
  int group, lane, quad_lane, row;
  float top[2], sum[2];       // what weights are relative to; the thread's part, of tiles of its group
  float o[2][prompt_dim / 8]; // of row `row` in [4 j], [4 j + 1], of the other in the two behind
  __device__ reader()
      : group(static_cast<int>(threadIdx.x) / 128), lane(static_cast<int>(threadIdx.x) % warp_lanes),
        quad_lane(lane % 4), row(static_cast<int>(threadIdx.x) % 128 / warp_lanes * 16 + lane / 4) {}
  // Of dims 32 c + 8 quad_lane + d of the group (c, d < 8), of row `row + 8 h`.
  __device__ __forceinline__ float& at(int h, int c, int d) { return o[d % 4 / 2][4 * c + 2 * h + d / 4 + d % 2 * 32]; }
};

// The two that rotation makes of neighbours; `turn`: cosine and sine.
__device__ __forceinline__ void turn_pair(float& x, float& y, float2 turn) {
  const float re = x * turn.x - y * turn.y, im = x * turn.y + y * turn.x;
  x = re, y = im;
}

// A head of the queries of a row in a warp. The largest goes to 2^14, so that nothing leaves the range of f16 and what
// is 2^-28 of it still has all bits.
struct head_part {
  float4 v[2][2];
  __device__ __forceinline__ void read(const float* q, int lane) {
#pragma unroll
    for (int u = 0; u < 2; ++u)
#pragma unroll
      for (int h = 0; h < 2; ++h) v[u][h] = __ldg(reinterpret_cast<const float4*>(q) + (2 * u + h) * warp_lanes + lane);
  }
  // The last 64 dims are those of the upper half of the lanes.
  __device__ __forceinline__ void rotate(int lane, float2 first, float2 second) {
    if (lane < warp_lanes / 2) return;
    float4& last = v[1][1];
    turn_pair(last.x, last.y, first), turn_pair(last.z, last.w, second);
  }
  __device__ __forceinline__ void store(prompt_shared& s, int head, int lane, float scale) {
    uint32_t top = 0;
#pragma unroll
    for (int u = 0; u < 2; ++u)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        for (const float x : {v[u][h].x, v[u][h].y, v[u][h].z, v[u][h].w})
          top = max(top, __float_as_uint(x) & 0x7FFFFFFFU);
    top = __reduce_max_sync(all_lanes, top);
    const int binade = static_cast<int>(top >> 23) - 127;
    const int exponent = top == 0 || binade == 128 ? 0 : min(14 - binade, 126);
    const float by = __int_as_float((exponent + 127) << 23);
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      swap_with_neighbour(v[u][0], v[u][1]);
      store_eight(s.query, head, u * warp_lanes + lane % 2 * 16 + lane / 2, {v[u][0], v[u][1], by});
    }
    if (lane == 0) s.query_by[head] = scale * exp_constants::log2_e * __int_as_float((127 - exponent) << 23);
  }
};

// Rotation of a row as rope_kernel has it, a pair a lane. Positions below zero are not turned.
struct row_turn {
  float2 pair{1, 0};
  bool turns;
  __device__ __forceinline__ row_turn(int64_t position, const float* frequencies, int lane) : turns(position >= 0) {
    if (turns) sincosf(static_cast<float>(position) * __ldg(frequencies + lane), &pair.y, &pair.x);
  }
  __device__ __forceinline__ float2 of(int lane) const {
    return make_float2(__shfl_sync(all_lanes, pair.x, lane), __shfl_sync(all_lanes, pair.y, lane));
  }
};
static_assert(prompt_turned == warp_lanes);

// By the readers, who have the registers for all of a row under way at once.
template <bool Projects>
__device__ __forceinline__ void read_queries(prompt_shared& s, const prompt_view& v, int64_t r, uint32_t row_round) {
  constexpr int heads = prompt_heads / reader_warps;
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  const int warp = static_cast<int>(threadIdx.x) / warp_lanes, first = warp * heads;
  head_part part[heads];
#pragma unroll
  for (int i = 0; i < heads; ++i) part[i].read(v.a.q + (r * prompt_heads + first + i) * prompt_dim, lane);
  if constexpr (Projects) { // while they come
    const row_turn turn(v.a.position[r], v.to.frequencies, lane);
    if (warp == 0) s.turn[row_round][lane] = make_float2(turn.pair.x, turn.turns ? -turn.pair.y : 0);
    if (v.to.turns_queries && turn.turns) {
      const float2 one = turn.of(lane * 2 % warp_lanes), two = turn.of((lane * 2 + 1) % warp_lanes);
#pragma unroll
      for (int i = 0; i < heads; ++i) part[i].rotate(lane, one, two);
    }
  }
#pragma unroll
  for (int i = 0; i < heads; ++i) part[i].store(s, first + i, lane, v.a.scale);
  show_writes();
  readers_meet();
}

// Both groups' sums of weights, and what the sums of a row are multiplied with.
__device__ __forceinline__ void meet_sums(reader& me, prompt_shared& s, float (&by)[2], const float* sink,
                                          uint32_t row_round) {
  auto& sums = s.sum[row_round];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float sum = lanes_sum(me.sum[h], 4);
    if (me.quad_lane == 0) sums[me.group][me.row + 8 * h] = sum;
  }
  readers_meet();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = me.row + 8 * h;
    const float own = power_of_two(fmaf(sink[row], exp_constants::log2_e, -me.top[h]));
    by[h] = me.top[h] == lowest ? 1.0F : 1.0F / (sums[0][row] + sums[1][row] + own);
  }
}

__device__ __forceinline__ void store_sums(reader& me, prompt_shared& s, const attention_view& a, int64_t r,
                                           uint32_t row_round) {
  float by[2];
  meet_sums(me, s, by, a.sink, row_round);
  float* to = a.o + (r * prompt_heads + me.row) * prompt_dim + me.group * (prompt_dim / 2) + me.quad_lane / 2 * 16 +
              me.quad_lane % 2 * 4;
#pragma unroll
  for (int h = 0; h < 2; ++h, to += 8 * prompt_dim) {
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      float4 v[2];
#pragma unroll
      for (int e = 0; e < 2; ++e)
        v[e] = make_float4(me.at(h, c, 4 * e) * by[h], me.at(h, c, 4 * e + 1) * by[h], me.at(h, c, 4 * e + 2) * by[h],
                           me.at(h, c, 4 * e + 3) * by[h]);
      swap_with_neighbour(v[0], v[1]);
      __stcs(reinterpret_cast<float4*>(to + 32 * c), v[0]);
      __stcs(reinterpret_cast<float4*>(to + 32 * c + 8), v[1]);
    }
  }
}

// Chunks 4 b .. 4 b + 3 of a row's dims, one Hadamard block, in the lanes of a quad.
struct quad_block {
  float v[4][8];
  // Sums -> o, turned back: the last two chunks of group 1 are the turned end of a head.
  __device__ __forceinline__ quad_block(reader& me, int h, int b, float by, const float2* turn) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int d = 0; d < 8; ++d) v[j][d] = me.at(h, 4 * b + j, d) * by;
      if (b == 1 && j >= 2 && me.group == 1) {
        const auto* pairs = reinterpret_cast<const float4*>(turn + (j - 2) * 16 + 4 * me.quad_lane);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float4 two = pairs[i];
          turn_pair(v[j][4 * i], v[j][4 * i + 1], make_float2(two.x, two.y));
          turn_pair(v[j][4 * i + 2], v[j][4 * i + 3], make_float2(two.z, two.w));
        }
      }
    }
  }
  __device__ __forceinline__ void sign(const uint4 (&signs)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t pairs[4] = {signs[j].x, signs[j].y, signs[j].z, signs[j].w};
#pragma unroll
      for (int d = 0; d < 8; ++d) v[j][d] *= f16_bits(static_cast<uint16_t>(pairs[d / 2] >> (d % 2 * 16)));
    }
  }
  __device__ __forceinline__ float largest(float top) const {
#pragma unroll
    for (const auto& eight : v)
#pragma unroll
      for (const float x : eight) top = fmaxf(top, fabsf(x));
    return top;
  }
  // Strides 1, 2 .. 64, as everywhere.
  __device__ __forceinline__ void transform() {
#pragma unroll
    for (int step = 1; step < 8; step *= 2)
#pragma unroll
      for (auto& eight : v)
#pragma unroll
        for (int d = 0; d < 8; ++d)
          if ((d & step) == 0) {
            const float low = eight[d], high = eight[d + step];
            eight[d] = low + high, eight[d + step] = low - high;
          }
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
      const float sign = (threadIdx.x & step) != 0 ? -1.0F : 1.0F;
#pragma unroll
      for (auto& eight : v)
#pragma unroll
        for (float& x : eight) x = fmaf(sign, x, __shfl_xor_sync(all_lanes, x, step));
    }
#pragma unroll
    for (int step = 1; step < 4; step *= 2)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if ((j & step) == 0)
#pragma unroll
          for (int d = 0; d < 8; ++d) {
            const float low = v[j][d], high = v[j + step][d];
            v[j][d] = low + high, v[j + step][d] = low - high;
          }
  }
};

// What rope, and gemm_rows.cuh behind it, make of o, with the same bits; o itself is never written. A warp has the
// halves by dims of the heads of two matrices, `row` those of one, `row + 8` those of the other.
__device__ __forceinline__ void store_products(reader& me, prompt_shared& s, const prompt_view& v, int64_t i,
                                               uint32_t row_round) {
  const prompt_products& to = v.to;
  const int first = static_cast<int>(threadIdx.x) % 128 / warp_lanes * 2;    // matrix
  const int column = me.lane / 4 * prompt_dim + me.group * (prompt_dim / 2); // of the matrix, its inputs
  uint4 signs[2][4];
  const auto read_part = [&](int part) { // 2 h + b
    const auto* suh = reinterpret_cast<const uint4*>(to.suh[first + part / 2] + column + part % 2 * 128) + me.quad_lane;
#pragma unroll
    for (int j = 0; j < 4; ++j) signs[part % 2][j] = __ldg(suh + 4 * j);
  };
  read_part(0);
  float by[2], top[2] = {};
  meet_sums(me, s, by, v.a.sink, row_round);
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const int h = part / 2, b = part % 2;
    if (part < 3) read_part(part + 1);
    quad_block block(me, h, b, by[h], s.turn[row_round]);
    block.sign(signs[b]);
    top[h] = block.largest(top[h]);
    block.transform();
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int d = 0; d < 8; ++d) me.at(h, 4 * b + j, d) = block.v[j][d];
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint32_t most = __reduce_max_sync(all_lanes, __float_as_uint(top[h]));
    if (me.lane == 0) s.largest[me.group][first + h] = most;
  }
  readers_meet();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const gemm_rows& rows = to.rows[first + h];
    const row_target target(rows, i, prompt_products::in);
    const row_power power(__uint_as_float(max(s.largest[0][first + h], s.largest[1][first + h])));
    if (me.group == 0 && me.lane == 0) *target.scale = power.inverse();
    const float times = power.by() * inverse_root_128;
    uint8_t* at = target.at + column / 64 * target.step;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      uint32_t pairs[4];
#pragma unroll
      for (int d = 0; d < 4; ++d)
        pairs[d] = bits_of(__floats2half2_rn(me.at(h, c, 2 * d) * times, me.at(h, c, 2 * d + 1) * times));
      __stcs(reinterpret_cast<uint4*>(at + c / 2 * target.step + ((c % 2 * 4 + me.quad_lane) ^ target.in_group) * 16),
             make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
    }
  }
}

#endif

} // namespace troupe::device
