/// The proxy of a plan's ports, for one launch.
#pragma once

#include "busbw/device/program.hpp"
#include "busbw/device/proxy.hpp"

namespace busbw::device {

inline bool has_ports(const Program& program) {
  for (std::uint32_t i = 0; i < program.way_count; ++i)
    if (program.ways[i].kind == plan::ConnectionKind::kPort) return true;
  return false;
}

/// Carries out what the blocks of a rank post until all of them have ended and nothing is left, or somebody gave up. One thread calls, once a launch.
template <class Pick>
void serve_ports(const Program& program, Pick pick) {
  std::vector<Ring> rings;
  for (std::uint32_t i = 0; i < program.way_count; ++i) {
    const Way& way = program.ways[i];
    bool known = way.kind != plan::ConnectionKind::kPort;
    for (const Ring& ring : rings) known = known || ring.at == program.ring(way).at;
    if (!known) rings.push_back(program.ring(way));
  }
  std::vector<std::byte*> windows;
  for (std::uint32_t i = 0; i < program.ranks * kSpaces; ++i) windows.push_back(program.spaces[i].base);
  Proxy proxy(program.rank, program.wire, std::move(windows), kSpaces, rings);
  std::uint64_t& served = program.word(program.rank, program.proxy_at + Program::kLine);
  const std::uint64_t launch = weak_load(&served) + 1;
  weak_store(&served, launch);
  for (std::uint32_t idle = 0;; ++idle) {
    if (proxy.turn(pick)) {
      idle = 0;
      continue;
    }
    const bool ended = SystemAtomic<std::uint64_t>(program.word(program.rank, program.proxy_at)).load(kAcquire) >= launch * program.blocks;
    if (ended && (proxy.idle() || SystemAtomic<std::uint32_t>(program.report().state).load(kRelaxed) != 0)) return;
    spin_pause(idle);
  }
}

}  // namespace busbw::device
