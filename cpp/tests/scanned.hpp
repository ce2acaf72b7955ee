/// Everything a scan of a text yields, as comparable rows: for properties that hold whatever the chunks are.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "busbw/scan/log_scanner.hpp"

namespace busbw::testing {

struct ScannedLine {
  std::int64_t line = 0, byte_offset = 0, time_ns = 0, pid = 0, tid = 0;
  std::int32_t rank = 0, device = 0, template_index = 0;
  int level = 0;
  std::string host, location, function, text;
  std::vector<std::string> fields;
  bool operator==(const ScannedLine&) const = default;
};

/// A line that became a row; its fields as text, `-` where unknown.
struct ScannedRow {
  std::size_t template_index = 0;
  std::int64_t line = 0, byte_offset = 0, pid = 0;
  std::int32_t rank = 0, device = 0;
  std::string host;
  std::vector<std::string> fields;
  bool operator==(const ScannedRow&) const = default;
};

struct Scanned {
  std::vector<ScannedLine> lines;
  std::vector<ScannedRow> rows;  ///< by template, then in order
  scan::ScanCounts counts;
};

inline bool same_counts(const scan::ScanCounts& a, const scan::ScanCounts& b) {
  return a.lines == b.lines && a.empty_lines == b.empty_lines && a.bytes == b.bytes && a.nccl_lines == b.nccl_lines && a.unrecognised_info == b.unrecognised_info &&
         a.first_unrecognised_line == b.first_unrecognised_line && a.plain_left_out == b.plain_left_out &&
         a.first_plain_left_out == b.first_plain_left_out && a.cut_lines == b.cut_lines && a.first_cut_line == b.first_cut_line &&
         a.bytes_with_nul == b.bytes_with_nul;
}

inline std::string field_text(const scan::FieldColumn& column, const scan::StringColumn& names, std::size_t i) {
  switch (column.type) {
    case scan::FieldType::kDigits:
    case scan::FieldType::kNumber: return column.integers.at(i) == scan::kNoInteger ? "-" : std::to_string(column.integers[i]);
    case scan::FieldType::kDecimal: return std::isnan(column.decimals.at(i)) ? "-" : std::to_string(column.decimals[i]);
    case scan::FieldType::kName: return column.codes.at(i) < 0 ? "-" : std::string(names.at(static_cast<std::size_t>(column.codes[i])));
    default: return std::string(column.strings.at(i));
  }
}

/// A scanner for patterns of which those that begin with `rows ` are the ones whose lines become rows.
inline scan::LogScanner scanner_for(const std::vector<std::string>& marked_patterns, std::int64_t plain_budget_bytes) {
  std::vector<std::string> patterns;
  std::vector<std::size_t> with_rows;
  for (const auto& marked : marked_patterns) {
    if (marked.starts_with("rows ")) with_rows.push_back(patterns.size());
    patterns.push_back(marked.starts_with("rows ") ? marked.substr(5) : marked);
  }
  return {patterns, with_rows, plain_budget_bytes};
}

/// What a scanner that has seen nothing yet yields of a text in chunks whose sizes next_size() gives; a size of 0 is an empty chunk. The
/// batch is taken after every chunk.
template <class NextSize>
Scanned scanned_by(scan::LogScanner& scanner, std::string_view text, NextSize&& next_size) {
  const std::vector<std::size_t>& with_rows = scanner.with_rows();
  Scanned out;
  const auto name = [](const scan::StringColumn& names, std::int32_t code) {
    return code < 0 ? std::string() : std::string(names.at(static_cast<std::size_t>(code)));
  };
  const auto drain = [&] {
    const scan::ScanBatch batch = scanner.take();
    for (std::size_t i = 0; i < batch.line.size(); ++i) {
      ScannedLine row{batch.line[i], batch.byte_offset[i], batch.time_ns[i], batch.pid[i], batch.tid[i], batch.rank[i], batch.device[i],
                      batch.template_index[i], batch.level[i], name(scanner.hosts(), batch.host[i]),
                      name(scanner.locations(), batch.location[i]), name(scanner.functions(), batch.function[i]),
                      std::string(batch.text.at(i)), {}};
      for (auto f = batch.field_begin[i]; f < batch.field_begin[i + 1]; ++f) row.fields.emplace_back(batch.fields.at(static_cast<std::size_t>(f)));
      out.lines.push_back(std::move(row));
    }
    const std::vector<scan::TableRows> taken = scanner.take_rows();
    for (std::size_t t = 0; t < taken.size(); ++t)
      for (std::size_t i = 0; i < taken[t].line.size(); ++i) {
        const scan::TableRows& rows = taken[t];
        ScannedRow row{with_rows[t], rows.line[i], rows.byte_offset[i], rows.pid[i], rows.rank[i], rows.device[i],
                       name(scanner.hosts(), rows.host[i]), {}};
        for (std::size_t f = 0; f < rows.fields.size(); ++f) row.fields.push_back(field_text(rows.fields[f], scanner.names(t, f), i));
        out.rows.push_back(std::move(row));
      }
  };
  while (!text.empty()) {
    const std::size_t size = std::min<std::size_t>(next_size(), text.size());
    const std::vector<char> chunk(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(size));  // of its own, so that overruns show
    scanner.feed({chunk.data(), chunk.size()});
    text.remove_prefix(size);
    drain();
  }
  scanner.finish();
  drain();
  std::stable_sort(out.rows.begin(), out.rows.end(), [](const auto& a, const auto& b) { return a.template_index < b.template_index; });
  out.counts = scanner.counts();
  return out;
}

/// The same by a scanner of its own.
template <class NextSize>
Scanned scanned(const std::vector<std::string>& marked_patterns, std::string_view text, std::int64_t plain_budget_bytes, NextSize&& next_size) {
  scan::LogScanner scanner = scanner_for(marked_patterns, plain_budget_bytes);
  return scanned_by(scanner, text, next_size);
}

inline Scanned scanned(const std::vector<std::string>& patterns, std::string_view text, std::int64_t plain_budget_bytes = 1 << 20) {
  return scanned(patterns, text, plain_budget_bytes, [&] { return text.size(); });
}

/// Whether s is well-formed UTF-8 (RFC 3629), by decoding it.
inline bool is_utf8(std::string_view s) {
  for (std::size_t i = 0; i < s.size();) {
    const auto first = static_cast<unsigned char>(s[i]);
    const std::size_t length = first < 0x80 ? 1 : first >> 5 == 6 ? 2 : first >> 4 == 14 ? 3 : first >> 3 == 30 ? 4 : 0;
    if (length == 0 || i + length > s.size()) return false;
    std::uint32_t point = length == 1 ? first : first & (0x7Fu >> length);
    for (std::size_t j = 1; j < length; ++j) {
      const auto next = static_cast<unsigned char>(s[i + j]);
      if (next >> 6 != 2) return false;
      point = point << 6 | (next & 0x3F);
    }
    constexpr std::uint32_t kLeast[]{0, 0, 0x80, 0x800, 0x10000};
    if (point < kLeast[length] || point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF)) return false;
    i += length;
  }
  return true;
}

}  // namespace busbw::testing
