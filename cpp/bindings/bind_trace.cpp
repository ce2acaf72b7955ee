// The scanner of Chrome traces for Python: bytes in, columns out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <utility>

#include "busbw/scan/trace_scanner.hpp"
#include "columns.hpp"

namespace nb = nanobind;
using namespace nb::literals;
namespace scan = busbw::scan;

namespace {

using busbw::bindings::column;

nb::bytes bytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }

nb::dict take(scan::TraceScanner& scanner) {
  scan::TraceSpans spans = scanner.take();
  nb::dict out;
  out["begin_ns"] = column(std::move(spans.begin_ns));
  out["end_ns"] = column(std::move(spans.end_ns));
  out["correlation"] = column(std::move(spans.correlation));
  out["external"] = column(std::move(spans.external));
  out["line"] = column(std::move(spans.line));
  out["byte_offset"] = column(std::move(spans.byte_offset));
  out["category"] = column(std::move(spans.category));
  out["name"] = column(std::move(spans.name));
  out["process"] = column(std::move(spans.process));
  out["lane"] = column(std::move(spans.lane));
  out["device"] = column(std::move(spans.device));
  out["args"] = column(std::move(spans.args));
  return out;
}

}  // namespace

NB_MODULE(_trace, m) {
  m.doc() = "Chrome traces scanned: spans in columns.";
  nb::class_<scan::TraceScanner>(m, "TraceScanner", "Scans a Chrome trace in chunks. feed() gives the GIL up.")
      .def(nb::init<std::size_t>(), "most_spans"_a, "most_spans: kept at most; further ones are counted.")
      .def(
          "feed",
          [](scan::TraceScanner& self, const nb::bytes& chunk) {
            const std::string_view view(chunk.c_str(), chunk.size());
            nb::gil_scoped_release release;
            self.feed(view);
          },
          "chunk"_a, "The next bytes of the file.")
      .def("finish", &scan::TraceScanner::finish, "The end of the file.")
      .def("take", &take, "The spans kept, as arrays (spans,); category, name, process and lane are codes of words(); -1: not said.")
      .def("words", [](const scan::TraceScanner& self) {
        nb::list out;
        for (const auto& word : self.words()) out.append(bytes(word));
        return out;
      }, "What codes stand for: JSON text between quotes.")
      .def("args", [](const scan::TraceScanner& self) {
        nb::list out;
        for (const auto& text : self.args()) out.append(bytes(text));
        return out;
      }, "Args of collectives, as JSON.")
      .def("members", [](const scan::TraceScanner& self) {
        nb::list out;
        for (const auto& [key, value] : self.members()) out.append(nb::make_tuple(bytes(key), bytes(value)));
        return out;
      }, "Top-level members but the events: key and JSON.")
      .def("categories", [](const scan::TraceScanner& self) {
        nb::dict out;
        for (const auto& [code, seen] : self.categories()) out[nb::int_(code)] = nb::make_tuple(seen.first, seen.second);
        return out;
      }, "Events with a time, and that time, ns, by code of category.")
      .def_prop_ro("ended", [](const scan::TraceScanner& self) { return self.state() == scan::TraceScanner::State::kDone; }, "Whether the document ended.")
      .def_prop_ro("problem", [](const scan::TraceScanner& self) { return nb::str(self.problem().c_str()); }, "What is wrong; empty: nothing.")
      .def_prop_ro("problem_at", &scan::TraceScanner::problem_at, "Byte of the file at which it is.")
      .def_prop_ro("events", &scan::TraceScanner::events, "Events seen.")
      .def_prop_ro("without_time", &scan::TraceScanner::without_time, "Complete events whose time is none.")
      .def_prop_ro("left_out", &scan::TraceScanner::left_out, "Spans beyond the most.");
}
