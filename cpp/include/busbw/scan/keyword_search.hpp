/// Which of many keywords occur in a text: one hash look-up a byte, ASCII case ignored.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace busbw::scan {

/// A keyword is looked for by its rarest four bytes (its gram), then compared in full: Wu and Manber, "A fast algorithm for
/// multi-pattern searching", TR-94-17, University of Arizona, 1994, without the shifts, for which most keywords are too short.
/// Unlike in an automaton, no look-up waits for the one before.
class KeywordSearch {
 public:
  /// Keywords must not be empty, or std::invalid_argument is thrown.
  explicit KeywordSearch(const std::vector<std::string_view>& keywords) {
    for (std::size_t k = 0; k < keywords.size(); ++k) {
      if (keywords[k].empty()) throw std::invalid_argument("a keyword is empty");
      std::string text;
      for (const char c : keywords[k]) text += lower(c);
      if (text.size() < kGram) short_.push_back(static_cast<std::uint32_t>(k));
      else word_of(text).keywords.push_back(static_cast<std::uint32_t>(k));
    }
  }

  /// Calls hit(keyword index) at least once for every keyword that occurs in text. Of keywords shorter than four bytes it is called
  /// for all; of the others, only for those that occur.
  template <class Hit>
  void find(std::string_view text, Hit&& hit) const {
    for (const auto k : short_) hit(k);
    if (text.size() < kGram) return;
    const std::size_t places = text.size() - kGram + 1;
    std::size_t begin = 0;
    for (; begin + kAtOnce <= places; begin += kAtOnce) {
      std::uint32_t candidates = 0;
      for (std::size_t j = 0; j < kAtOnce; ++j) candidates |= may_begin(gram(text.data() + begin + j)) << j;
      for (; candidates != 0; candidates &= candidates - 1)
        compare(text, begin + static_cast<std::size_t>(std::countr_zero(candidates)), hit);
    }
    for (; begin < places; ++begin)
      if (may_begin(gram(text.data() + begin))) compare(text, begin, hit);
  }

 private:
  static constexpr std::size_t kGram = 4;
  static constexpr std::size_t kAtOnce = 8;       ///< places that share one branch
  static constexpr std::size_t kCells = 1 << 16;  ///< bits of filter_: 8 KiB, which stays in the first-level cache
  static constexpr std::size_t kBuckets = 1 << 10;
  struct Word {
    std::string text;           ///< lower case
    std::uint32_t gram;
    std::size_t gram_at;
    std::int32_t next;          ///< word in the same bucket, -1 at the end
    std::vector<std::uint32_t> keywords;
  };

  static constexpr char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

  /// Four bytes with bit 5 set: equal for texts that differ in ASCII case only.
  static std::uint32_t gram(const char* at) {
    std::uint32_t bytes;
    std::memcpy(&bytes, at, kGram);
    return bytes | 0x20202020u;
  }
  static std::uint32_t cell_of(std::uint32_t gram) { return gram * 0x9E3779B1u >> 16; }
  std::uint32_t may_begin(std::uint32_t gram) const {
    const std::uint32_t cell = cell_of(gram);
    return static_cast<std::uint32_t>(filter_[cell / 32] >> (cell % 32) & 1);
  }

  template <class Hit>
  void compare(std::string_view text, std::size_t at, Hit& hit) const {
    const std::uint32_t bytes = gram(text.data() + at);
    for (auto w = buckets_[cell_of(bytes) % kBuckets]; w >= 0; w = words_[static_cast<std::size_t>(w)].next) {
      const Word& word = words_[static_cast<std::size_t>(w)];
      if (word.gram == bytes && word.gram_at <= at && stands_at(text, at - word.gram_at, word.text))
        for (const auto k : word.keywords) hit(k);
    }
  }

  static bool stands_at(std::string_view text, std::size_t at, const std::string& word) {
    if (word.size() > text.size() - at) return false;
    for (std::size_t i = 0; i < word.size(); ++i)
      if (lower(text[at + i]) != word[i]) return false;
    return true;
  }

  Word& word_of(const std::string& text) {
    const auto known = std::find_if(words_.begin(), words_.end(), [&](const Word& word) { return word.text == text; });
    if (known != words_.end()) return *known;
    const std::size_t at = rarest_gram(text);
    const std::uint32_t bytes = gram(text.data() + at);
    const std::uint32_t cell = cell_of(bytes);
    filter_[cell / 32] |= 1u << (cell % 32);
    auto& bucket = buckets_[cell % kBuckets];
    words_.push_back({text, bytes, at, bucket, {}});
    bucket = static_cast<std::int32_t>(words_.size()) - 1;
    return words_.back();
  }

  static std::size_t rarest_gram(std::string_view word) {
    constexpr std::string_view kRareFirst = "zqjxkvbywgpfmucdlhrsnioate ";  // English text; digits and signs are put in the middle
    const auto commonness = [&](char c) {
      const auto rank = kRareFirst.find(c);
      return rank == std::string_view::npos ? kRareFirst.size() / 2 : rank;
    };
    std::size_t best = 0, best_score = ~std::size_t{0};
    for (std::size_t i = 0; i + kGram <= word.size(); ++i) {
      std::size_t score = 0;
      for (const char c : word.substr(i, kGram)) score += commonness(c);
      if (score < best_score) best = i, best_score = score;
    }
    return best;
  }

  static constexpr std::array<std::int32_t, kBuckets> empty_buckets() {
    std::array<std::int32_t, kBuckets> out{};
    for (auto& bucket : out) bucket = -1;
    return out;
  }

  std::vector<std::uint32_t> short_;
  std::vector<Word> words_;
  std::array<std::int32_t, kBuckets> buckets_ = empty_buckets();
  std::array<std::uint32_t, kCells / 32> filter_{};
};

}  // namespace busbw::scan
