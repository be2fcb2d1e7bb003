// The weights of all products of a list, as one stream that does not wait for the products: each
// warp copies its parts into a ring in shared memory, far enough ahead that the memory stays busy
// while blocks wait for each other. A thread reads only what it has copied itself.
#pragma once

#include "ops/cuda/element.cuh"
#include "ops/resident/list.cuh"

namespace ebb::cuda {

inline constexpr int resident_warps = 8, resident_threads = 32 * resident_warps;

// A part is four times 16 bytes per lane. If the matrix has lines, which are contiguous along its
// inner axis, a unit is one column of the result and belongs to one warp. Otherwise a unit is the
// columns in 32 bytes, and belongs to a team of warps that take its parts in turn.
template <class S>
struct Units {
  static constexpr int elements = pack<S>;
  static constexpr int packs = 4;         // of a lane in a part
  static constexpr int lanes_of_row = 2;  // lanes that read one row of a unit's columns
  static constexpr int rows_of_pack = 32 / lanes_of_row;
  static constexpr int unit_columns = lanes_of_row * elements;
  static constexpr int chains = 16;  // partial sums of a unit, each over every 16th pack
  static constexpr int team_warps = chains / packs, teams = resident_warps / team_warps;
};

inline constexpr int ring_parts = 11, part_bytes = 4 * 512;
inline constexpr int ring_bytes = resident_warps * ring_parts * part_bytes;

// The asynchronous copies and the reads of the ring keep the order in which they are written here;
// everything else may move around them.
__device__ inline void copy_pack(unsigned to, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(inside ? 16 : 0));
}
__device__ inline uint4 read_pack(unsigned from) {
  uint4 raw;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
               : "r"(from));
  return raw;
}

template <class S>
class Stream {
  using U = Units<S>;

 public:
  __device__ Stream(const TaskList& list, unsigned char* memory)
      : list_(list),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(static_cast<int>(threadIdx.x) / 32),
        ring_(static_cast<unsigned>(__cvta_generic_to_shared(memory)) +
              warp_ * ring_parts * part_bytes + lane_ * 16),
        end_(ring_ + ring_parts * part_bytes),
        task_(list.first_product) {
    begin_task();
    slot_ = ring_;
#pragma unroll 1
    for (int i = 0; i < ring_parts; ++i) {
      copy_next(slot_);
      slot_ += part_bytes;
    }
    slot_ = ring_;
  }

  // The units of a product that this warp or its team takes: unit, unit + step, ... below `units`.
  // Of each unit this warp takes `parts` parts: first_part, first_part + part_step, ...
  struct Share {
    int unit, step, units, first_part, part_step, parts;
  };
  __device__ Share share(const resident::Product& p) const {
    Share s;
    int worker;
    const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    if (p.lines) {
      constexpr int elements = 32 * U::elements * U::packs;
      worker = warp_ * blocks + block;
      s.step = resident_warps * blocks;
      s.units = p.columns;
      s.first_part = 0, s.part_step = 1;
      s.parts = (p.inner + elements - 1) / elements;
    } else {
      constexpr int rows = U::rows_of_pack * U::packs;
      worker = warp_ / U::team_warps * blocks + block;
      s.step = U::teams * blocks;
      s.units = (p.columns + U::unit_columns - 1) / U::unit_columns;
      s.first_part = warp_ % U::team_warps, s.part_step = U::team_warps;
      s.parts = ((p.inner + rows - 1) / rows - s.first_part + U::team_warps - 1) / U::team_warps;
    }
    s.unit = worker - p.first;
    if (s.unit < 0) s.unit += s.step;
    return s;
  }

  // Returns the next part of the stream, in the order in which units and parts are taken.
  __device__ void take(uint4 (&to)[U::packs]) {
    asm volatile("cp.async.wait_group %0;" ::"n"(ring_parts - 1));
#pragma unroll
    for (int i = 0; i < U::packs; ++i) to[i] = read_pack(slot_ + i * 512);
    copy_next(slot_);
    slot_ += part_bytes;
    if (slot_ == end_) slot_ = ring_;
  }

 private:
  // Finds the next product, from `task_` on, of which this warp computes a part.
  __device__ void begin_task() {
    while (task_ >= 0) {
      const resident::Product p = list_.at<resident::Product>(task_);
      const Share s = share(p);
      if (s.unit < s.units && s.parts > 0) {
        unit_ = s.unit, unit_step_ = s.step, units_ = s.units;
        begin_unit(p, s);
        fetch_small(p, s);
        return;
      }
      task_ = p.next;
    }
    limit_ = 0, left_ = 0;  // nothing more is copied
  }

  // The cursor at this warp's first part of the unit.
  __device__ void begin_unit(const resident::Product& p, const Share& s) {
    const S* matrix = static_cast<const S*>(p.matrix);
    left_ = s.parts;
    if (p.lines) {
      at_ = lane_ * U::elements;
      pack_step_ = 32 * U::elements;
      limit_ = p.inner;
      from_ = matrix + unit_ * p.stride + at_;
      row_ = 1;
      part_step_ = U::packs * pack_step_;
    } else {
      const int column = unit_ * U::unit_columns + lane_ % U::lanes_of_row * U::elements;
      at_ = s.first_part * U::packs * U::rows_of_pack + lane_ / U::lanes_of_row;
      pack_step_ = U::rows_of_pack;
      limit_ = column < p.columns ? p.inner : 0;
      from_ = matrix + at_ * p.stride + column;
      row_ = p.stride;
      part_step_ = U::team_warps * U::packs * pack_step_;
    }
  }

  __device__ void next_unit() {
    unit_ += unit_step_;
    const resident::Product p = list_.at<resident::Product>(task_);
    if (unit_ < units_) {
      begin_unit(p, share(p));
    } else {
      task_ = p.next;
      begin_task();
    }
  }

  // Loads the other operands of the product into the second-level cache, so that the product itself
  // does not wait for the memory.
  __device__ void fetch_small(const resident::Product& p, const Share& s) const {
    const auto fetch = [](const S* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); };
    const S* bias = static_cast<const S*>(p.bias);
    const int width = p.lines ? 1 : U::unit_columns;
    if (bias)
      for (int unit = s.unit + lane_ * s.step; unit < s.units; unit += 32 * s.step)
        fetch(bias + unit * width);
    constexpr int line = 128 / static_cast<int>(sizeof(S));
    for (const void* of_norm : {p.rows.weight, p.rows.bias})
      if (of_norm && warp_ == 0 && lane_ == 0)
        for (int i = static_cast<int>(blockIdx.x) * line; i < p.inner;
             i += static_cast<int>(gridDim.x) * line)
          fetch(static_cast<const S*>(of_norm) + i);
  }

  // Copies the part at the cursor and advances it; at the end of the list it copies nothing.
  __device__ void copy_next(unsigned to) {
#pragma unroll
    for (int i = 0; i < U::packs; ++i)
      copy_pack(to + i * 512, from_ + i * pack_step_ * row_, at_ + i * pack_step_ < limit_);
    asm volatile("cp.async.commit_group;");
    at_ += part_step_;
    from_ += part_step_ * row_;
    if (--left_ == 0) next_unit();
  }

  const TaskList& list_;
  int lane_, warp_;
  unsigned ring_, end_, slot_ = 0;  // addresses in shared memory
  // The cursor: the next part is `line_packs` times 16 bytes from `from_` on, `pack_step_` · `row_`
  // elements apart, as long as their indices from `at_` on are below `limit_`.
  int task_, unit_ = 0, unit_step_ = 0, units_ = 0, left_ = 0;
  int at_ = 0, limit_ = 0, pack_step_ = 0, part_step_ = 0;
  std::int64_t row_ = 0;
  const S* from_ = nullptr;
};

}  // namespace ebb::cuda
