// A filter that never leaves out a template that would match, and leaves out those that differ in the first two words.
#include "busbw/scan/start_filter.hpp"

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "check.hpp"

using busbw::scan::LineTemplate;
using busbw::scan::StartBytes;
using busbw::scan::StartFilter;

namespace {

/// Indices of the templates that the filter lets through, in its order.
std::string candidates(const std::vector<std::string>& patterns, std::string_view message) {
  std::vector<StartBytes> starts;
  for (const auto& pattern : patterns) starts.push_back(LineTemplate(pattern).start_bytes());
  std::string out;
  StartFilter(starts).first_that(message, [&](std::size_t t) {
    out += std::to_string(t) + " ";
    return false;
  });
  return out;
}

void two_words_choose() {
  const std::vector<std::string> patterns{"^Channel {c:d} : {s:s}", "^{call:k}: opCount {o:i}", "^{call:k}: {bytes:d} Bytes", "^{bytes:d} Bytes", "^~note {s:s}",
                                          "^{name:k} set by {o:s}"};
  CHECK_EQUAL(candidates(patterns, "Channel 00 : 1"), "0 ");
  CHECK_EQUAL(candidates(patterns, "AllReduce: opCount 1a"), "1 ");
  CHECK_EQUAL(candidates(patterns, "AllReduce: 12 Bytes"), "2 ");
  CHECK_EQUAL(candidates(patterns, "12 Bytes"), "3 ");
  CHECK_EQUAL(candidates(patterns, "Note it"), "4 ");
  CHECK_EQUAL(candidates(patterns, "  RANK \t set by x"), "5 ");
  CHECK_EQUAL(candidates(patterns, "word"), "");
  CHECK_EQUAL(candidates(patterns, ""), "");
  CHECK_EQUAL(candidates(patterns, " "), "");
}

/// More templates than bits in a word, tried in order until one takes the message.
void many_templates() {
  std::vector<StartBytes> starts(200, LineTemplate("^{a:w} x").start_bytes());
  std::size_t tried = 0;
  CHECK_EQUAL(StartFilter(starts).first_that("a x", [&](std::size_t t) { return ++tried, t == 150; }), 150);
  CHECK_EQUAL(tried, 151u);
  CHECK_EQUAL(StartFilter({}).first_that("a x", [](std::size_t) { return true; }), -1);
}

/// Random messages made of pieces of the patterns: what matches passes the filter.
void nothing_that_matches_is_left_out() {
  const std::vector<std::string> patterns{"^a {x:d}",  "^ab", "^ a b", "^{x:w} a",    "{x:d}a",         "{x:f} {y:f}a", "^{x:i}: {y:x}b", "{x:s} a {y:s}",
                                          "^~A b{x:s}", "^a: {x:s}", "{x:k}:{y:k} b", "^a{x:d} b", "^b{x:s}", "{x:w}: a"};
  const std::vector<std::string> pieces{"a", "b", "A", "B", " ", "  ", "\t", ":", "1", "-", "0x1", ".", "1.5", "\n", "\xFF"};
  std::vector<StartBytes> starts;
  std::vector<LineTemplate> templates(patterns.begin(), patterns.end());
  for (const auto& shape : templates) starts.push_back(shape.start_bytes());
  const StartFilter filter(starts);
  std::mt19937_64 random(3);
  std::vector<std::string_view> fields;
  int matches = 0;
  for (int run = 0; run < 100'000; ++run) {
    std::string message;
    for (auto n = random() % 8; n-- > 0;) message += pieces[random() % pieces.size()];
    std::vector<bool> passed(patterns.size());
    filter.first_that(message, [&](std::size_t t) { return passed[t] = true, false; });
    for (std::size_t t = 0; t < patterns.size(); ++t)
      if (templates[t].match(message, fields)) {
        ++matches;
        if (!passed[t]) CHECK_EQUAL(message, patterns[t]);
      }
  }
  CHECK(matches > 1000);
}

}  // namespace

int main() {
  two_words_choose();
  many_templates();
  nothing_that_matches_is_left_out();
  return busbw::testing::failures != 0;
}
