/// Scans logs of many interleaved processes in chunks and keeps the lines that mean something, column by column.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "busbw/scan/keyword_search.hpp"
#include "busbw/scan/line_head.hpp"
#include "busbw/scan/line_template.hpp"

namespace busbw::scan {

/// Whether every byte is ASCII from the blank on: no tab, no escape, no NUL, no UTF-8 sequence. Eight bytes at a time.
inline bool is_plain_ascii(std::string_view text) {
  constexpr std::uint64_t kBlanks = 0x2020202020202020, kHighBits = 0x8080808080808080;
  std::uint64_t others = 0;  // a byte below the blank borrows into its high bit, one above ASCII has it
  const auto look_at = [&](const char* at, std::size_t bytes) {
    std::uint64_t eight = kBlanks;
    std::memcpy(&eight, at, bytes);
    others |= (eight - kBlanks) | eight;
  };
  std::size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) look_at(text.data() + i, 8);
  if (i < text.size()) look_at(text.data() + i, text.size() - i);
  return (others & kHighBits) == 0;
}

/// Strings in one buffer, Arrow's layout: string i is data[offsets[i], offsets[i+1]). Always valid UTF-8.
struct StringColumn {
  std::vector<std::int32_t> offsets{0};
  std::string data;

  /// Bytes that are no UTF-8 become U+FFFD, one each. Throws std::length_error past 2 GiB, which Arrow's offsets cannot hold.
  void append(std::string_view text) {
    std::size_t done = 0;
    while (done < text.size()) {
      std::size_t end = done;
      for (std::size_t length; end < text.size() && (length = sequence_length(text.substr(end))) != 0;) end += length;
      data.append(text.substr(done, end - done));
      if (end < text.size()) data.append("\xEF\xBF\xBD"), ++end;
      done = end;
    }
    close();
  }
  /// The same for text that is known to be ASCII.
  void append_ascii(std::string_view text) {
    data.append(text);
    close();
  }
  std::size_t size() const { return offsets.size() - 1; }
  std::string_view at(std::size_t i) const {
    const auto begin = static_cast<std::size_t>(offsets[i]);
    return std::string_view(data).substr(begin, static_cast<std::size_t>(offsets[i + 1]) - begin);
  }

 private:
  void close() {
    if (data.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) [[unlikely]]
      throw std::length_error("more than 2 GiB of text between two calls of take(); feed smaller chunks");
    offsets.push_back(static_cast<std::int32_t>(data.size()));
  }
  /// Bytes of the well-formed UTF-8 sequence at the front of s, 0 if there is none (Unicode 15, table 3-7).
  static std::size_t sequence_length(std::string_view s) {
    const auto at = [&](std::size_t i) { return static_cast<unsigned char>(s[i]); };
    const auto tail = [&](std::size_t i) { return i < s.size() && (at(i) & 0xC0) == 0x80; };
    const unsigned char c = at(0);
    if (c < 0x80) return 1;
    if (c >= 0xC2 && c <= 0xDF) return tail(1) ? 2 : 0;
    if (c >= 0xE0 && c <= 0xEF) {
      if (!tail(1) || !tail(2) || (c == 0xE0 && at(1) < 0xA0) || (c == 0xED && at(1) > 0x9F)) return 0;
      return 3;
    }
    if (c >= 0xF0 && c <= 0xF4) {
      if (!tail(1) || !tail(2) || !tail(3) || (c == 0xF0 && at(1) < 0x90) || (c == 0xF4 && at(1) > 0x8F)) return 0;
      return 4;
    }
    return 0;
  }
};

/// Strings that repeat: each distinct one gets a code. Code -1 is none.
class Interned {
 public:
  /// A log of noise must not grow the table without end; the largest cluster has fewer hosts.
  static constexpr std::size_t kMostValues = 65536;

  /// -1 for the empty string, and for a new one once there are kMostValues.
  std::int32_t code(std::string_view text) {
    if (text.empty()) return -1;
    std::int32_t& recent = recent_[slot_of(text)];
    if (recent >= 0 && originals_[static_cast<std::size_t>(recent)] == text) return recent;
    const auto found = codes_.find(text);
    if (found != codes_.end()) return recent = found->second;
    if (values_.size() >= kMostValues) return -1;
    const auto code = static_cast<std::int32_t>(values_.size());
    values_.append(text);
    originals_.push_back(codes_.emplace(text, code).first->first);
    return recent = code;
  }
  const StringColumn& values() const { return values_; }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
  };
  /// From the last bytes: names of one kind differ at their end.
  static std::size_t slot_of(std::string_view text) {
    std::uint64_t tail = text.size();
    const std::size_t bytes = std::min<std::size_t>(text.size(), 8);
    std::memcpy(&tail, text.data() + text.size() - bytes, bytes);
    return static_cast<std::size_t>(tail * 0x9E3779B97F4A7C15u >> 56);
  }
  static constexpr std::array<std::int32_t, 256> no_codes() {
    std::array<std::int32_t, 256> out{};
    for (auto& code : out) code = -1;
    return out;
  }

  StringColumn values_;
  std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> codes_;
  std::vector<std::string_view> originals_;  ///< by code, as read; into codes_, whose keys stay where they are
  std::array<std::int32_t, 256> recent_ = no_codes();
};

/// The lines kept of the chunks fed so far. One entry a line; -1 is unknown.
struct ScanBatch {
  std::vector<std::int64_t> line, byte_offset, time_ns, pid, tid;
  std::vector<std::int32_t> rank, device, host, location, function, template_index;
  std::vector<std::int8_t> level;
  StringColumn text;
  std::vector<std::int32_t> field_begin{0};  ///< (lines + 1), into fields
  StringColumn fields;

  /// Room for as many lines and fields as other holds.
  void reserve_columns_like(const ScanBatch& other) {
    for (auto column : {&ScanBatch::line, &ScanBatch::byte_offset, &ScanBatch::time_ns, &ScanBatch::pid, &ScanBatch::tid})
      (this->*column).reserve((other.*column).size());
    for (auto column : {&ScanBatch::rank, &ScanBatch::device, &ScanBatch::host, &ScanBatch::location, &ScanBatch::function,
                        &ScanBatch::template_index, &ScanBatch::field_begin})
      (this->*column).reserve((other.*column).size());
    level.reserve(other.level.size());
    text.offsets.reserve(other.text.offsets.size());
    fields.offsets.reserve(other.fields.offsets.size());
  }
};

/// What was seen but not kept.
struct ScanCounts {
  std::int64_t lines = 0;
  std::int64_t bytes = 0;
  std::int64_t nccl_lines = 0;
  std::int64_t unrecognised_info = 0;        ///< NCCL INFO, TRACE or CALL lines that no template takes
  std::int64_t first_unrecognised_line = -1;
  std::int64_t plain_left_out = 0;           ///< lines without marker, past the budget, that no template takes
  std::int64_t first_plain_left_out = -1;
  std::int64_t cut_lines = 0;                ///< lines longer than kLongestLine, read up to there
  std::int64_t first_cut_line = -1;
  std::int64_t bytes_with_nul = 0;           ///< lines that hold a NUL byte
};

/// Feed chunks of a file in order, take() the batch when it suits, finish() at the end. Memory: one chunk and one batch.
/// One thread at a time.
class LogScanner {
 public:
  static constexpr std::size_t kLongestLine = 64 * 1024;

  /// A line without marker and template costs at least this much of the budget: its columns take room too.
  static constexpr std::int64_t kLeastPlainCost = 32;

  /// plain_budget_bytes: how much text of lines without NCCL marker and without template is kept, over the whole file.
  LogScanner(const std::vector<std::string>& patterns, std::int64_t plain_budget_bytes)
      : templates_(make_templates(patterns)), keywords_(make_keywords(templates_)), plain_budget_bytes_(plain_budget_bytes) {
    hits_.assign((templates_.size() + 63) / 64, 0);
  }

  void feed(std::string_view chunk) {
    std::size_t begin = 0;
    while (begin < chunk.size()) {
      const void* found = std::memchr(chunk.data() + begin, '\n', chunk.size() - begin);
      if (found == nullptr) {
        carry(chunk.substr(begin));
        return;
      }
      const std::size_t end = static_cast<std::size_t>(static_cast<const char*>(found) - chunk.data());
      const std::string_view piece = chunk.substr(begin, end - begin);
      if (carried_bytes_ == 0) line(piece, piece.size() + 1);
      else {
        carry(piece);
        line(carried_, carried_bytes_ + 1);
        carried_.clear();
        carried_bytes_ = 0;
      }
      begin = end + 1;
    }
  }

  /// The last line may lack its line break.
  void finish() {
    if (carried_bytes_ == 0) return;
    line(carried_, carried_bytes_);
    carried_.clear();
    carried_bytes_ = 0;
  }

  ScanBatch take() {
    ScanBatch out = std::move(batch_);
    batch_ = ScanBatch{};
    batch_.reserve_columns_like(out);
    return out;
  }

  /// Gives the text buffers of a batch back that is no longer needed, so that the next lines need no fresh memory.
  void reuse(ScanBatch&& done) {
    if (!batch_.line.empty()) return;
    batch_.text.data = std::move(done.text.data);
    batch_.fields.data = std::move(done.fields.data);
    batch_.text.data.clear();
    batch_.fields.data.clear();
  }

  const ScanCounts& counts() const { return counts_; }
  const std::vector<LineTemplate>& templates() const { return templates_; }
  const StringColumn& hosts() const { return hosts_.values(); }
  const StringColumn& locations() const { return locations_.values(); }
  const StringColumn& functions() const { return functions_.values(); }

 private:
  static std::vector<LineTemplate> make_templates(const std::vector<std::string>& patterns) {
    std::vector<LineTemplate> out;
    out.reserve(patterns.size());
    for (const auto& pattern : patterns) out.emplace_back(pattern);
    return out;
  }
  static KeywordSearch make_keywords(const std::vector<LineTemplate>& templates) {
    std::vector<std::string_view> words;
    for (const auto& t : templates) words.push_back(t.keyword());
    return KeywordSearch(words);
  }

  void carry(std::string_view piece) {
    carried_bytes_ += piece.size();
    if (carried_.size() < kLongestLine + 1) carried_.append(piece.substr(0, kLongestLine + 1 - carried_.size()));
  }

  /// Escape sequences (ECMA-48 CSI and OSC) do not belong to the text, nor does what a carriage return overwrote.
  std::string_view clean(std::string_view text) {
    if (text.find('\x1b') != std::string_view::npos) text = without_escapes(text);
    while (!text.empty() && text.back() == '\r') text.remove_suffix(1);
    const auto overwritten = text.rfind('\r');
    if (overwritten != std::string_view::npos) text.remove_prefix(overwritten + 1);
    return text;
  }

  std::string_view without_escapes(std::string_view text) {
    cleaned_.clear();
    std::size_t i = 0;
    const auto skip_while = [&](char low, char high) {
      while (i < text.size() && text[i] >= low && text[i] <= high) ++i;
    };
    while (i < text.size()) {
      const auto escape = std::min(text.find('\x1b', i), text.size());
      cleaned_.append(text.substr(i, escape - i));
      i = escape + 1;
      if (i >= text.size()) break;
      const char kind = text[i++];
      if (kind == '[') {
        skip_while(' ', '?');  // parameters, then one final byte
        if (i < text.size() && text[i] >= '@' && text[i] <= '~') ++i;
      } else if (kind == ']') {
        i = std::min(text.find_first_of("\a\x1b", i), text.size());
        if (i < text.size() && text[i] == '\a') ++i;
        else if (text.substr(i).starts_with("\x1b\\")) i += 2;
      } else if (kind >= ' ' && kind <= '/') {
        skip_while(' ', '/');  // such as ESC ( B, which picks a character set
        if (i < text.size()) ++i;
      }
    }
    return cleaned_;
  }

  void line(std::string_view raw, std::size_t bytes) {
    const std::int64_t number = ++counts_.lines;
    const std::int64_t offset = counts_.bytes;
    counts_.bytes += static_cast<std::int64_t>(bytes);
    if (raw.size() > kLongestLine) {
      raw = raw.substr(0, kLongestLine);
      if (counts_.cut_lines++ == 0) counts_.first_cut_line = number;
    }
    const bool ascii = is_plain_ascii(raw);
    const std::string_view text = ascii ? raw : clean(raw);
    if (text.empty()) return;
    if (!ascii && text.find('\0') != std::string_view::npos) ++counts_.bytes_with_nul;
    const LineHead head = parse_line_head(text);
    const int matched = match(head.message, ascii ? head.message : with_blanks_for_tabs(head.message));
    if (head.level != Level::kPlain) {
      ++counts_.nccl_lines;
      if (matched < 0 && head.level != Level::kWarn && head.level != Level::kAttention) {
        if (counts_.unrecognised_info++ == 0) counts_.first_unrecognised_line = number;
        return;
      }
    } else if (matched < 0) {
      const std::int64_t cost = std::max(static_cast<std::int64_t>(text.size()), kLeastPlainCost);
      if (cost > plain_budget_bytes_) {
        if (counts_.plain_left_out++ == 0) counts_.first_plain_left_out = number;
        return;
      }
      plain_budget_bytes_ -= cost;
    }
    keep(head, number, offset, matched, ascii);
  }

  /// The keywords of templates have blanks, which stand for tabs as well.
  std::string_view with_blanks_for_tabs(std::string_view text) {
    if (text.find('\t') == std::string_view::npos) return text;
    blanked_ = text;
    std::replace(blanked_.begin(), blanked_.end(), '\t', ' ');
    return blanked_;
  }

  /// Index of the first template, in the order given, that takes the message; -1 if none. searched: where to look for keywords.
  int match(std::string_view message, std::string_view searched) {
    bool any = false;
    keywords_.find(searched, [&](std::uint32_t k) {
      hits_[k / 64] |= std::uint64_t{1} << (k % 64);
      any = true;
    });
    if (!any) return -1;
    int matched = -1;
    for (std::size_t w = 0; w < hits_.size(); ++w) {
      std::uint64_t bits = hits_[w];
      hits_[w] = 0;
      while (bits != 0 && matched < 0) {
        const int index = static_cast<int>(w * 64) + std::countr_zero(bits);
        bits &= bits - 1;
        if (templates_[static_cast<std::size_t>(index)].match(message, fields_)) matched = index;
      }
    }
    return matched;
  }

  void keep(const LineHead& head, std::int64_t number, std::int64_t offset, int matched, bool ascii) {
    batch_.line.push_back(number);
    batch_.byte_offset.push_back(offset);
    batch_.time_ns.push_back(head.time_ns);
    batch_.pid.push_back(head.pid);
    batch_.tid.push_back(head.tid);
    batch_.rank.push_back(small(head.rank));
    batch_.device.push_back(small(head.device));
    batch_.host.push_back(hosts_.code(head.host));
    batch_.location.push_back(locations_.code(head.location));
    batch_.function.push_back(functions_.code(head.function));
    batch_.level.push_back(static_cast<std::int8_t>(head.level));
    batch_.template_index.push_back(matched);
    const auto append = ascii ? &StringColumn::append_ascii : &StringColumn::append;
    (batch_.text.*append)(head.message);
    if (matched >= 0)
      for (const auto field : fields_) (batch_.fields.*append)(field);
    batch_.field_begin.push_back(static_cast<std::int32_t>(batch_.fields.size()));
  }

  static std::int32_t small(std::int64_t value) { return value > std::numeric_limits<std::int32_t>::max() ? -1 : static_cast<std::int32_t>(value); }

  std::vector<LineTemplate> templates_;
  KeywordSearch keywords_;
  std::int64_t plain_budget_bytes_;
  std::vector<std::uint64_t> hits_;
  std::vector<std::string_view> fields_;
  std::string carried_, cleaned_, blanked_;
  std::size_t carried_bytes_ = 0;
  ScanBatch batch_;
  ScanCounts counts_;
  Interned hosts_, locations_, functions_;
};

}  // namespace busbw::scan
