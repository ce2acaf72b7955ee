/// Scans logs of many interleaved processes in chunks and keeps the lines that mean something, column by column.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "busbw/scan/keyword_search.hpp"
#include "busbw/scan/line_head.hpp"
#include "busbw/scan/line_template.hpp"
#include "busbw/scan/start_filter.hpp"

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

  /// Longer than any name (a host's has at most 253 bytes, RFC 1035).
  static constexpr std::size_t kLongestValue = 1024;

  /// -1 for the empty string, for one longer than kLongestValue, and for a new one once there are kMostValues.
  std::int32_t code(std::string_view text) {
    if (text.empty() || text.size() > kLongestValue) return -1;
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

/// An integer that is missing or too long to be one: more than 18 decimal or 15 hexadecimal digits.
inline constexpr std::int64_t kNoInteger = std::numeric_limits<std::int64_t>::min();

/// One field of the rows of a table. Of the columns, the one that its type asks for is filled.
struct FieldColumn {
  FieldType type;
  std::vector<std::int64_t> integers;  ///< d, i; kNoInteger: unknown
  std::vector<double> decimals;        ///< f; NaN: unknown
  std::vector<std::int32_t> codes;     ///< k; -1: unknown
  StringColumn strings;                ///< w, s, x

  void reserve_like(const FieldColumn& other) {
    integers.reserve(other.integers.size());
    decimals.reserve(other.decimals.size());
    codes.reserve(other.codes.size());
    strings.offsets.reserve(other.strings.offsets.size());
    strings.data.reserve(other.strings.data.size());
  }
};

/// The lines that one template took, as rows. One entry a line; -1 is unknown.
struct TableRows {
  std::vector<std::int64_t> line, byte_offset, pid;
  std::vector<std::int32_t> rank, device, host;
  std::vector<FieldColumn> fields;
};

namespace detail {

inline std::int64_t integer_of(std::string_view digits) {
  const bool negative = digits.front() == '-';
  digits.remove_prefix(negative);
  if (digits.size() > 18) return kNoInteger;
  std::int64_t value = 0;
  for (const char c : digits) value = value * 10 + (c - '0');
  return negative ? -value : value;
}

inline constexpr auto kHexValues = [] {
  std::array<std::int8_t, 256> out{};
  for (int value = 0; value < 16; ++value)
    for (const char digit : {"0123456789abcdef"[value], "0123456789ABCDEF"[value]})
      out[static_cast<unsigned char>(digit)] = static_cast<std::int8_t>(value);
  return out;
}();

inline std::int64_t hexadecimal_of(std::string_view digits) {
  if (digits.size() > 2 && (digits[1] == 'x' || digits[1] == 'X')) digits.remove_prefix(2);
  if (digits.size() > 15) return kNoInteger;
  std::int64_t value = 0;
  for (const char c : digits) value = value * 16 + kHexValues[static_cast<unsigned char>(c)];
  return value;
}

inline double decimal_of(std::string_view number) {
  if (number.front() == '+') number.remove_prefix(1);
  double value = 0;
  const auto read = std::from_chars(number.data(), number.data() + number.size(), value);
  return read.ec == std::errc() ? value : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace detail

/// What was seen but not kept.
struct ScanCounts {
  std::int64_t lines = 0;
  std::int64_t empty_lines = 0;              ///< without text, escape sequences apart
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

/// The templates of a scan, taken apart once and never changed after: any number of scanners, in any threads, share one.
class LogGrammar {
 public:
  /// rowed: the templates, by index and in ascending order, whose lines become rows of typed columns; they begin at the start of the
  /// message and are tried before all others. Throws std::invalid_argument for a malformed template, and for one in rowed that cannot be.
  LogGrammar(const std::vector<std::string>& patterns, const std::vector<std::size_t>& rowed)
      : templates(make_templates(patterns)),
        with_rows(rowed),
        searched(all_but(with_rows, templates.size())),
        starts(make_starts(templates, with_rows)),
        keywords(make_keywords(templates, searched)) {}

  const std::vector<LineTemplate> templates;
  const std::vector<std::size_t> with_rows;
  const std::vector<std::size_t> searched;  ///< the other templates
  const StartFilter starts;                 ///< of with_rows
  const KeywordSearch keywords;             ///< of searched

 private:
  static std::vector<LineTemplate> make_templates(const std::vector<std::string>& patterns) {
    std::vector<LineTemplate> out;
    out.reserve(patterns.size());
    for (const auto& pattern : patterns) out.emplace_back(pattern);
    return out;
  }
  static std::vector<std::size_t> all_but(const std::vector<std::size_t>& left_out, std::size_t n) {
    std::vector<std::size_t> out;
    for (std::size_t t = 0, i = 0; t < n; ++t)
      if (i < left_out.size() && left_out[i] == t) ++i;
      else out.push_back(t);
    if (out.size() + left_out.size() != n) throw std::invalid_argument("templates with rows are not in ascending order, or there are fewer templates");
    return out;
  }
  static StartFilter make_starts(const std::vector<LineTemplate>& all, const std::vector<std::size_t>& rowed) {
    std::vector<StartBytes> out;
    for (const auto t : rowed) {
      if (!all[t].begins_at_start()) throw std::invalid_argument("template " + std::to_string(t) + " has rows, so it needs ^ in front");
      out.push_back(all[t].start_bytes());
    }
    return StartFilter(out);
  }
  static KeywordSearch make_keywords(const std::vector<LineTemplate>& all, const std::vector<std::size_t>& indices) {
    std::vector<std::string_view> words;
    for (const auto t : indices) words.push_back(all[t].keyword());
    return KeywordSearch(words);
  }
};

/// Feed chunks of a file in order, take() the batch when it suits, finish() at the end. Memory: one chunk and one batch.
/// One thread at a time.
class LogScanner {
 public:
  static constexpr std::size_t kLongestLine = 64 * 1024;

  /// What some editors put before the first line of UTF-8; no part of it.
  static constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

  /// A line without marker and template costs at least this much of the budget: its columns take room too.
  static constexpr std::int64_t kLeastPlainCost = 32;

  /// plain_budget_bytes: how much text of lines without NCCL marker and without template is kept, over the whole file.
  LogScanner(std::shared_ptr<const LogGrammar> grammar, std::int64_t plain_budget_bytes)
      : grammar_(std::move(grammar)), plain_budget_bytes_(plain_budget_bytes), hits_((grammar_->searched.size() + 63) / 64) {
    for (const auto t : grammar_->with_rows) {
      rows_.push_back(empty_rows(grammar_->templates[t]));
      names_.emplace_back(grammar_->templates[t].fields().size());
    }
  }

  /// With a grammar of its own. Throws as LogGrammar does.
  LogScanner(const std::vector<std::string>& patterns, const std::vector<std::size_t>& with_rows, std::int64_t plain_budget_bytes)
      : LogScanner(std::make_shared<const LogGrammar>(patterns, with_rows), plain_budget_bytes) {}

  /// A scanner for another file: it shares the grammar and nothing else, so it costs no compilation.
  LogScanner fresh(std::int64_t plain_budget_bytes) const { return {grammar_, plain_budget_bytes}; }

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

  /// The rows of each template in with_rows since the last call, in that order.
  std::vector<TableRows> take_rows() {
    std::vector<TableRows> out;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      out.push_back(std::exchange(rows_[i], empty_rows(grammar_->templates[grammar_->with_rows[i]])));
      reserve_rows_like(rows_[i], out.back());
    }
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
  const std::vector<LineTemplate>& templates() const { return grammar_->templates; }
  const std::vector<std::size_t>& with_rows() const { return grammar_->with_rows; }
  /// The words of a field of type k, by code: field f of template with_rows[i].
  const StringColumn& names(std::size_t i, std::size_t f) const { return names_[i][f].values(); }
  const StringColumn& hosts() const { return hosts_.values(); }
  const StringColumn& locations() const { return locations_.values(); }
  const StringColumn& functions() const { return functions_.values(); }

 private:
  static TableRows empty_rows(const LineTemplate& shape) {
    TableRows out;
    for (const auto type : shape.types()) out.fields.push_back({type, {}, {}, {}, {}});
    return out;
  }
  static void reserve_rows_like(TableRows& rows, const TableRows& other) {
    for (auto column : {&TableRows::line, &TableRows::byte_offset, &TableRows::pid}) (rows.*column).reserve(other.line.size());
    for (auto column : {&TableRows::rank, &TableRows::device, &TableRows::host}) (rows.*column).reserve(other.line.size());
    for (std::size_t f = 0; f < rows.fields.size(); ++f) rows.fields[f].reserve_like(other.fields[f]);
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
    if (number == 1 && raw.starts_with(kByteOrderMark)) raw.remove_prefix(kByteOrderMark.size());
    const bool ascii = is_plain_ascii(raw);
    const std::string_view text = ascii ? raw : clean(raw);
    if (text.empty()) {
      ++counts_.empty_lines;
      return;
    }
    if (!ascii && text.find('\0') != std::string_view::npos) ++counts_.bytes_with_nul;
    const LineHead head = parse_line_head(text);
    if (head.level != Level::kPlain) ++counts_.nccl_lines;
    const int row_of = grammar_->starts.first_that(head.message, [&](std::size_t i) { return grammar_->templates[grammar_->with_rows[i]].match(head.message, fields_); });
    if (row_of >= 0) {
      keep_row(head, number, offset, static_cast<std::size_t>(row_of), ascii);
      return;
    }
    const int matched = match(head.message, ascii ? head.message : with_blanks_for_tabs(head.message));
    if (head.level != Level::kPlain) {
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

  /// Index of the first template without rows, in the order given, that takes the message; -1 if none. searched: where to look for keywords.
  int match(std::string_view message, std::string_view searched) {
    bool any = false;
    grammar_->keywords.find(searched, [&](std::uint32_t k) {
      hits_[k / 64] |= std::uint64_t{1} << (k % 64);
      any = true;
    });
    if (!any) return -1;
    int matched = -1;
    for (std::size_t w = 0; w < hits_.size(); ++w) {
      std::uint64_t bits = hits_[w];
      hits_[w] = 0;
      while (bits != 0 && matched < 0) {
        const std::size_t index = grammar_->searched[w * 64 + static_cast<std::size_t>(std::countr_zero(bits))];
        bits &= bits - 1;
        if (grammar_->templates[index].match(message, fields_)) matched = static_cast<int>(index);
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

  void keep_row(const LineHead& head, std::int64_t number, std::int64_t offset, std::size_t i, bool ascii) {
    TableRows& rows = rows_[i];
    rows.line.push_back(number);
    rows.byte_offset.push_back(offset);
    rows.pid.push_back(head.pid);
    rows.rank.push_back(small(head.rank));
    rows.device.push_back(small(head.device));
    rows.host.push_back(hosts_.code(head.host));
    for (std::size_t f = 0; f < fields_.size(); ++f) {
      FieldColumn& column = rows.fields[f];
      switch (column.type) {
        case FieldType::kDigits: column.integers.push_back(detail::integer_of(fields_[f])); break;
        case FieldType::kNumber: column.integers.push_back(detail::hexadecimal_of(fields_[f])); break;
        case FieldType::kDecimal: column.decimals.push_back(detail::decimal_of(fields_[f])); break;
        case FieldType::kName: column.codes.push_back(names_[i][f].code(fields_[f])); break;
        case FieldType::kHex: column.strings.append_ascii(fields_[f]); break;
        case FieldType::kWord:
        case FieldType::kText:
          if (ascii) column.strings.append_ascii(fields_[f]);
          else column.strings.append(fields_[f]);
          break;
      }
    }
  }

  static std::int32_t small(std::int64_t value) { return value > std::numeric_limits<std::int32_t>::max() ? -1 : static_cast<std::int32_t>(value); }

  std::shared_ptr<const LogGrammar> grammar_;
  std::int64_t plain_budget_bytes_;
  std::vector<std::uint64_t> hits_;
  std::vector<std::string_view> fields_;
  std::string carried_, cleaned_, blanked_;
  std::size_t carried_bytes_ = 0;
  ScanBatch batch_;
  std::vector<TableRows> rows_;               ///< by place in with_rows
  std::vector<std::vector<Interned>> names_;  ///< by place in with_rows and field
  ScanCounts counts_;
  Interned hosts_, locations_, functions_;
};

}  // namespace busbw::scan
