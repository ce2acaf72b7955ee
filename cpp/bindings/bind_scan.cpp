// The log scanner for Python: bytes in, columns out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "busbw/scan/log_scanner.hpp"
#include "columns.hpp"

namespace nb = nanobind;
using namespace nb::literals;
namespace scan = busbw::scan;

namespace {

using busbw::bindings::column;

nb::tuple strings(std::vector<std::int32_t> offsets, const std::string& data) {
  return nb::make_tuple(column(std::move(offsets)), nb::bytes(data.data(), data.size()));
}

nb::tuple strings(const scan::StringColumn& values) { return strings(values.offsets, values.data); }

nb::object field(scan::FieldColumn&& values, const scan::StringColumn& names) {
  switch (values.type) {
    case scan::FieldType::kDigits:
    case scan::FieldType::kNumber: return nb::cast(column(std::move(values.integers)));
    case scan::FieldType::kDecimal: return nb::cast(column(std::move(values.decimals)));
    case scan::FieldType::kName: return nb::make_tuple(column(std::move(values.codes)), strings(names));
    default: return strings(std::move(values.strings.offsets), values.strings.data);
  }
}

nb::dict take_rows(scan::LogScanner& scanner) {
  std::vector<scan::TableRows> taken = scanner.take_rows();
  nb::dict out;
  for (std::size_t i = 0; i < taken.size(); ++i) {
    scan::TableRows& rows = taken[i];
    if (rows.line.empty()) continue;
    nb::list fields;
    for (std::size_t f = 0; f < rows.fields.size(); ++f) fields.append(field(std::move(rows.fields[f]), scanner.names(i, f)));
    nb::dict columns;
    columns["line"] = column(std::move(rows.line));
    columns["byte_offset"] = column(std::move(rows.byte_offset));
    columns["pid"] = column(std::move(rows.pid));
    columns["rank"] = column(std::move(rows.rank));
    columns["device"] = column(std::move(rows.device));
    columns["host"] = column(std::move(rows.host));
    columns["fields"] = fields;
    out[nb::int_(scanner.with_rows()[i])] = columns;
  }
  return out;
}

nb::dict take(scan::LogScanner& scanner) {
  scan::ScanBatch batch = scanner.take();
  nb::dict out;
  out["text"] = strings(std::move(batch.text.offsets), batch.text.data);
  out["fields"] = strings(std::move(batch.fields.offsets), batch.fields.data);
  out["line"] = column(std::move(batch.line));
  out["byte_offset"] = column(std::move(batch.byte_offset));
  out["time_ns"] = column(std::move(batch.time_ns));
  out["pid"] = column(std::move(batch.pid));
  out["tid"] = column(std::move(batch.tid));
  out["rank"] = column(std::move(batch.rank));
  out["device"] = column(std::move(batch.device));
  out["host"] = column(std::move(batch.host));
  out["location"] = column(std::move(batch.location));
  out["function"] = column(std::move(batch.function));
  out["template_index"] = column(std::move(batch.template_index));
  out["level"] = column(std::move(batch.level));
  out["field_begin"] = column(std::move(batch.field_begin));
  out["rows"] = take_rows(scanner);
  scanner.reuse(std::move(batch));
  return out;
}

nb::dict counts(const scan::LogScanner& scanner) {
  const scan::ScanCounts& c = scanner.counts();
  nb::dict out;
  out["lines"] = c.lines;
  out["empty_lines"] = c.empty_lines;
  out["bytes"] = c.bytes;
  out["nccl_lines"] = c.nccl_lines;
  out["unrecognised_info"] = c.unrecognised_info;
  out["first_unrecognised_line"] = c.first_unrecognised_line;
  out["plain_left_out"] = c.plain_left_out;
  out["first_plain_left_out"] = c.first_plain_left_out;
  out["cut_lines"] = c.cut_lines;
  out["first_cut_line"] = c.first_cut_line;
  out["bytes_with_nul"] = c.bytes_with_nul;
  return out;
}

}  // namespace

NB_MODULE(_scan, m) {
  m.doc() = "Log scanning: line heads, message templates, columns.";
  nb::class_<scan::LogScanner>(m, "LogScanner", "Scans a log in chunks. feed() gives the GIL up.")
      .def(nb::init<const std::vector<std::string>&, const std::vector<std::size_t>&, std::int64_t>(), "patterns"_a, "with_rows"_a,
           "plain_budget_bytes"_a,
           "patterns: message templates, tried in this order. with_rows: ascending indices of those whose lines become rows of typed columns;\n"
           "they begin at the start of the message and are tried before all others. Raises ValueError for a template that is malformed.")
      .def("fresh", &scan::LogScanner::fresh, "plain_budget_bytes"_a, "A scanner for another file, with the same templates, which are not taken apart again.")
      .def(
          "feed",
          [](scan::LogScanner& self, const nb::bytes& chunk) {
            const std::string_view view(chunk.c_str(), chunk.size());
            nb::gil_scoped_release release;
            self.feed(view);
          },
          "chunk"_a, "The next bytes of the file.")
      .def("finish", &scan::LogScanner::finish, "The end of the file: takes the last line.")
      .def("take", &take, "The lines kept since the last take(), as arrays (lines,) and (offsets, data) pairs of strings; `rows`: by index of template, the\n"
           "rows of those with rows. Their fields by type: d, i int64, unknown is the least one; f float64, unknown is NaN; k a pair of int32\n"
           "codes, unknown is -1, and strings by code; x, w, s strings.")
      .def("counts", &counts, "What was seen since the start, in lines.")
      .def("hosts", [](const scan::LogScanner& self) { return strings(self.hosts()); }, "Host names by code.")
      .def("locations", [](const scan::LogScanner& self) { return strings(self.locations()); }, "Source places by code.")
      .def("functions", [](const scan::LogScanner& self) { return strings(self.functions()); }, "Function names by code.")
      .def("field_names", [](const scan::LogScanner& self) {
        std::vector<std::vector<std::string>> out;
        for (const auto& t : self.templates()) out.push_back(t.fields());
        return out;
      }, "Names of the fields of every template.")
      .def("field_types", [](const scan::LogScanner& self) {
        std::vector<std::string> out;
        for (const auto& t : self.templates()) {
          out.emplace_back();
          for (const auto type : t.types()) out.back() += static_cast<char>(type);
        }
        return out;
      }, "Types of the fields of every template, a letter each.");
}
