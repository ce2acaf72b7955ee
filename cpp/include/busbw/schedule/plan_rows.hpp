/// The rows of a plan for the verifier: all that one rank runs.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "busbw/schedule/plan_columns.hpp"

namespace busbw::schedule {

struct Group {
  std::vector<std::int32_t> ranks;
  Buffer buffer;
};

/// What one rank runs. The spans belong to whoever made them and must outlive it.
struct RankRows {
  std::span<const Row> rows;
  std::span<const Block> blocks;
  std::span<const Connection> connections;
  std::span<const Walk> walks;
  std::vector<Group> groups;
  std::vector<std::int32_t> semaphores;     ///< initial values
  std::array<std::int32_t, 3> chunks;       ///< of input, output, scratch
  std::array<std::int64_t, 3> alias;        ///< chunk of the rank's memory at which each buffer begins; in place, two overlap
  std::int64_t memory_chunks = 0;           ///< chunks of memory that the buffers take together
};

}  // namespace busbw::schedule
