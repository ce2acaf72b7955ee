/// Which of many templates may take a message, by its first two words: three look-ups a message.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "busbw/scan/line_template.hpp"

namespace busbw::scan {

/// For templates that begin at the start of the message.
class StartFilter {
 public:
  explicit StartFilter(const std::vector<StartBytes>& templates) : blocks_((templates.size() + 63) / 64) {
    for (std::size_t t = 0; t < templates.size(); ++t)
      for (std::size_t byte = 0; byte < 256; ++byte) {
        Block& block = blocks_[t / 64];
        const std::uint64_t bit = std::uint64_t{1} << (t % 64);
        if (templates[t].first[byte]) block.first[byte] |= bit;
        if (templates[t].last[byte]) block.last[byte] |= bit;
        if (templates[t].second[byte]) block.second[byte] |= bit;
      }
  }

  /// Calls takes(index) for the templates that may match, in order, until one returns true; that index, -1 if none does.
  template <class Takes>
  int first_that(std::string_view message, Takes&& takes) const {
    if (blocks_.empty()) return -1;
    std::size_t begin = 0;
    while (begin < message.size() && is_blank(message[begin])) ++begin;
    std::size_t end = begin;
    while (end < message.size() && !is_blank(message[end])) ++end;
    if (begin == end) return -1;  // blanks only: no template is without literal text
    std::size_t next = end;
    while (next < message.size() && is_blank(message[next])) ++next;
    const auto byte_at = [&](std::size_t at) { return static_cast<std::size_t>(static_cast<unsigned char>(message[at])); };
    const std::size_t first = byte_at(begin), last = byte_at(end - 1), second = next < message.size() ? byte_at(next) : std::size_t{'\n'};
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      std::uint64_t candidates = blocks_[b].first[first] & blocks_[b].last[last] & blocks_[b].second[second];
      for (; candidates != 0; candidates &= candidates - 1)
        if (const std::size_t index = b * 64 + static_cast<std::size_t>(std::countr_zero(candidates)); takes(index)) return static_cast<int>(index);
    }
    return -1;
  }

 private:
  struct Block {
    std::array<std::uint64_t, 256> first{}, last{}, second{};
  };
  static bool is_blank(char c) { return c == ' ' || c == '\t'; }

  std::vector<Block> blocks_;
};

}  // namespace busbw::scan
