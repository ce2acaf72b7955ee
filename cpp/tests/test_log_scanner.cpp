// What the scanner keeps of a text, what it counts, and that chunks do not matter.
#include "busbw/scan/log_scanner.hpp"

#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "scanned.hpp"

using namespace busbw::scan;
using busbw::testing::is_utf8;
using busbw::testing::same_counts;
using busbw::testing::Scanned;
using busbw::testing::scanned;
using busbw::testing::scanned_by;
using busbw::testing::scanner_for;

namespace {

const std::vector<std::string> kPatterns{
    "^Channel {channel:d}/{index:d} : {src:d}[{src_device:x}] -> {dst:d}[{dst_device:x}] via {via:s}",
    "Using network {network:w}",
    "~connection {what:w}",
    "Using {rest:s}",
    "no route to {host:w}",
};

void lines_that_mean_something_are_kept() {
  const Scanned out = scanned(kPatterns,
                              "host0:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
                              "[1,3]<stdout>:host0:1:2 [0] NCCL INFO nothing known\n"
                              "\n"
                              "[2026-01-02 03:04:05] host1:3:4 [1] a.cc:7 (f) NCCL WARN nothing known\n"
                              "plain\n"
                              "CONNECTION refused\n");
  CHECK_EQUAL(out.lines.size(), 4u);
  CHECK_EQUAL(out.lines[0].line, 1);
  CHECK_EQUAL(out.lines[0].host, "host0");
  CHECK_EQUAL(out.lines[0].template_index, 0);
  CHECK(out.lines[0].fields == (std::vector<std::string>{"00", "0", "0", "0", "1", "1", "P2P/CUMEM"}));
  CHECK_EQUAL(out.lines[1].line, 4);
  CHECK_EQUAL(out.lines[1].byte_offset, 66 + 52 + 1);  // lengths of the first three lines with their line breaks
  CHECK_EQUAL(out.lines[1].template_index, -1);
  CHECK_EQUAL(out.lines[1].location, "a.cc:7");
  CHECK_EQUAL(out.lines[1].function, "f");
  CHECK_EQUAL(out.lines[2].text, "plain");
  CHECK_EQUAL(out.lines[3].fields.front(), "refused");
  CHECK_EQUAL(out.counts.lines, 6);
  CHECK_EQUAL(out.counts.nccl_lines, 3);
  CHECK_EQUAL(out.counts.empty_lines, 1);
  CHECK_EQUAL(out.counts.unrecognised_info, 1);
  CHECK_EQUAL(out.counts.first_unrecognised_line, 2);
}

/// Of several templates that take a line, the first in the order given wins.
void order_of_templates() {
  CHECK_EQUAL(scanned(kPatterns, "Using network IB\n").lines[0].template_index, 1);
  CHECK_EQUAL(scanned(kPatterns, "Using nothing\n").lines[0].template_index, 3);
}

void runs_of_blanks_and_tabs_select_the_same_template() {
  for (const auto* text : {"no route to host0", "no  route   to host0", "no\troute\tto\thost0", "no \t route to host0"})
    CHECK_EQUAL(scanned(kPatterns, text).lines[0].template_index, 4);
}

/// Line breaks of other systems, what a carriage return overwrote, and colours do not belong to the text.
void terminal_output() {
  const auto text = [](std::string_view line) { return scanned(kPatterns, line).lines.at(0).text; };
  CHECK_EQUAL(text("plain\r\n"), "plain");
  CHECK_EQUAL(text("plain\r\r\n"), "plain");
  CHECK_EQUAL(text(" 50 %\r100 %\n"), "100 %");
  CHECK_EQUAL(text("\x1b[32mgreen\x1b[0m text\n"), "green text");
  CHECK_EQUAL(text("\x1b[1;38;5;208mbold\x1b[m\r\n"), "bold");
  CHECK_EQUAL(text("plain\r\x1b[0m\n"), "plain");
  CHECK_EQUAL(text("plain\x1b[0m\r\n"), "plain");
  CHECK_EQUAL(text("\x1b]0;title\aplain\x1b]8;;http://a\x1b\\link\n"), "plainlink");
  CHECK_EQUAL(text("\x1b]0;title\x1b[1mplain\n"), "plain");
  CHECK_EQUAL(text("a\x1b(Bb\x1b=c\x1b\n"), "abc");
  CHECK_EQUAL(text("a\x1b[12\xC3\xA4" "b"), "a\xC3\xA4" "b");  // not a sequence: the text goes on
  CHECK_EQUAL(text("a\x1b[12"), "a");
  const Scanned coloured = scanned(kPatterns, "\x1b[36mworker-1  |\x1b[0m host0:1:2 [0] NCCL INFO Using network IB\n");
  CHECK_EQUAL(coloured.lines[0].host, "host0");
  CHECK_EQUAL(coloured.lines[0].template_index, 1);
}

/// Bytes that are no UTF-8 become U+FFFD, one each (Unicode 15, table 3-7).
void strings_are_utf8() {
  const std::string bad = "\xEF\xBF\xBD";
  const auto text = [](std::string_view line) { return scanned(kPatterns, line).lines.at(0).text; };
  CHECK_EQUAL(text("\xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80"), "\xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80");
  CHECK_EQUAL(text("a\xFF" "b"), "a" + bad + "b");
  CHECK_EQUAL(text("a\xC3"), "a" + bad);
  CHECK_EQUAL(text("\xC0\x80"), bad + bad);          // overlong
  CHECK_EQUAL(text("\xED\xA0\x80"), bad + bad + bad);  // surrogate
  CHECK_EQUAL(text("\xF4\x90\x80\x80"), bad + bad + bad + bad);
  const Scanned fields = scanned(kPatterns, "h\xFF:1:2 [0] NCCL INFO Using network I\xFF" "B\n");
  CHECK_EQUAL(fields.lines[0].host, "h" + bad);
  CHECK_EQUAL(fields.lines[0].fields[0], "I" + bad + "B");
}

void nul_bytes_are_kept_and_counted() {
  const std::string text("Using\0 network IB\nUsing network IB\n", 35);
  const Scanned out = scanned(kPatterns, text);
  CHECK_EQUAL(out.counts.bytes_with_nul, 1);
  CHECK_EQUAL(out.lines[0].text, text.substr(0, 17));
}

/// A line longer than kLongestLine is read up to there; the next one is whole.
void long_lines_are_cut() {
  const std::string longest(LogScanner::kLongestLine, 'x');
  const Scanned whole = scanned(kPatterns, longest + "\nnext\n");
  CHECK_EQUAL(whole.counts.cut_lines, 0);
  for (const std::size_t more : {std::size_t{1}, std::size_t{100}, std::size_t{5'000'000}}) {
    const Scanned out = scanned(kPatterns, "first\n" + longest + std::string(more, 'y') + "\nnext\n", 1 << 20, [] { return std::size_t{100'000}; });
    CHECK_EQUAL(out.counts.cut_lines, 1);
    CHECK_EQUAL(out.counts.first_cut_line, 2);
    CHECK_EQUAL(out.lines.size(), 3u);
    CHECK(out.lines[1].text == longest);
    CHECK_EQUAL(out.lines[2].text, "next");
    CHECK_EQUAL(out.lines[2].byte_offset, static_cast<std::int64_t>(6 + longest.size() + more + 1));
  }
}

void the_last_line_may_lack_its_line_break() {
  for (const auto* text : {"first\nlast", "first\nlast\n"}) {
    const Scanned out = scanned(kPatterns, text);
    CHECK_EQUAL(out.counts.lines, 2);
    CHECK_EQUAL(out.lines.back().text, "last");
    CHECK_EQUAL(out.counts.bytes, static_cast<std::int64_t>(std::string_view(text).size()));
  }
  CHECK_EQUAL(scanned(kPatterns, "").counts.lines, 0);
}

/// Lines without marker and template fill a budget, 32 bytes a line at least; those with one do not.
void plain_lines_have_a_budget() {
  std::string text;
  for (int i = 0; i < 10; ++i) text += "x\nUsing network IB\nhost0:1:2 [0] NCCL WARN w\n";
  const Scanned out = scanned(kPatterns, text, 4 * 32);
  CHECK_EQUAL(out.lines.size(), 4u + 10 + 10);
  CHECK_EQUAL(out.counts.plain_left_out, 6);
  CHECK_EQUAL(out.counts.first_plain_left_out, 4 * 3 + 1);
  CHECK_EQUAL(scanned(kPatterns, std::string(100, 'x'), 99).lines.size(), 0u);
  CHECK_EQUAL(scanned(kPatterns, std::string(100, 'x'), 100).lines.size(), 1u);
}

/// A log of noise cannot grow the table of names without end.
void names_are_bounded() {
  Interned names;
  for (std::size_t i = 0; i < Interned::kMostValues; ++i) CHECK_EQUAL(names.code("host" + std::to_string(i)), static_cast<std::int32_t>(i));
  CHECK_EQUAL(names.code("one more"), -1);
  CHECK_EQUAL(names.code("host7"), 7);
  CHECK_EQUAL(names.code(""), -1);
  Interned longest;
  CHECK_EQUAL(longest.code(std::string(Interned::kLongestValue + 1, 'x')), -1);
  CHECK_EQUAL(longest.code(std::string(Interned::kLongestValue, 'x')), 0);
  // Other bytes that become the same UTF-8 stay another name, and one name keeps one code.
  Interned damaged;
  CHECK_EQUAL(damaged.code("a\xFF"), 0);
  CHECK_EQUAL(damaged.code("a\xFE"), 1);
  CHECK_EQUAL(damaged.code("a\xFF"), 0);
}

std::string joined(const std::vector<std::string>& fields) {
  std::string out;
  for (const auto& field : fields) out += (out.empty() ? "" : "|") + field;
  return out;
}

/// Lines of templates with rows stand in typed columns and nowhere else.
void lines_become_rows() {
  const std::vector<std::string> patterns{"Using network {network:w}",
                                          "rows ^{call:k}: op {op:i} at {_buffer:x} count {count:d} took {us:f} comm {comm:x} {w:w} / {rest:s}"};
  const Scanned out = scanned(patterns,
                              "[1,3]<stdout>:host0:1:2 [7] NCCL INFO AllReduce: op 1f at 0x7f00 count -12 took 1.5e1 comm 0xAB a / b c\n"
                              "host0:1:2 [0] NCCL INFO Using network IB\n"
                              "AllGather: op 0x10 at 1 count 0 took +.5 comm ff \xFF / \n");
  CHECK_EQUAL(out.lines.size(), 1u);
  CHECK_EQUAL(out.rows.size(), 2u);
  CHECK_EQUAL(joined(out.rows[0].fields), "AllReduce|31|-12|15.000000|0xAB|a|b c");
  CHECK_EQUAL(out.rows[0].template_index, 1u);
  CHECK_EQUAL(out.rows[0].line, 1);
  CHECK_EQUAL(out.rows[0].host, "host0");
  CHECK_EQUAL(out.rows[0].pid, 1);
  CHECK_EQUAL(out.rows[0].rank, 3);
  CHECK_EQUAL(out.rows[0].device, 7);
  CHECK_EQUAL(joined(out.rows[1].fields), "AllGather|16|0|0.500000|ff|\xEF\xBF\xBD|");
  CHECK_EQUAL(out.rows[1].line, 3);
  CHECK_EQUAL(out.rows[1].byte_offset, 104 + 41);  // lengths of the first two lines with their line breaks
  CHECK_EQUAL(out.rows[1].rank, -1);
  CHECK_EQUAL(out.counts.nccl_lines, 2);
}

/// 18 decimal and 15 hexadecimal digits fit into 64 bits; one more is unknown, as is a decimal number past the largest double.
void numbers_too_long_are_unknown() {
  const auto field = [](const std::string& pattern, const std::string& text) { return scanned({"rows ^n " + pattern}, "n " + text).rows.at(0).fields.at(0); };
  CHECK_EQUAL(field("{n:d}", "999999999999999999"), "999999999999999999");
  CHECK_EQUAL(field("{n:d}", "-999999999999999999"), "-999999999999999999");
  CHECK_EQUAL(field("{n:d}", "1000000000000000000"), "-");
  CHECK_EQUAL(field("{n:i}", "0xFfFfFfFfFfFfFfF"), "1152921504606846975");
  CHECK_EQUAL(field("{n:i}", "0x1000000000000000"), "-");
  CHECK_EQUAL(field("{n:x}", "0x1000000000000000"), "0x1000000000000000");
  CHECK_EQUAL(field("{n:f}", "1e999"), "-");
  CHECK_EQUAL(field("{n:f}", "-2.5"), "-2.500000");
}

/// Past the bound a word of type k is unknown; the row stays.
void words_of_rows_are_bounded() {
  std::string text;
  for (std::size_t i = 0; i <= Interned::kMostValues; ++i) text += "call " + std::to_string(i) + "\n";
  const Scanned out = scanned({"rows ^call {name:k}"}, text);
  CHECK_EQUAL(out.rows.size(), Interned::kMostValues + 1);
  CHECK_EQUAL(out.rows[Interned::kMostValues - 1].fields[0], std::to_string(Interned::kMostValues - 1));
  CHECK_EQUAL(out.rows[Interned::kMostValues].fields[0], "-");
}

/// A template with rows is tried before those in front of it, and must begin at the start of the message.
void templates_with_rows_come_first() {
  const Scanned out = scanned({"call {n:d}", "rows ^call {n:d} of", "rows ^call {n:d}"}, "call 1\ncall 2 of\nno call 3\n");
  CHECK_EQUAL(out.rows.size(), 2u);
  CHECK_EQUAL(out.rows[0].line, 2);
  CHECK_EQUAL(out.rows[1].line, 1);
  CHECK_EQUAL(out.lines.size(), 1u);
  CHECK_EQUAL(out.lines[0].line, 3);
  CHECK_THROWS(std::invalid_argument, LogScanner({"call {n:d}"}, {0}, 0));
  CHECK_THROWS(std::invalid_argument, LogScanner({"^call {n:d}"}, {1}, 0));
  CHECK_THROWS(std::invalid_argument, LogScanner({"^call {n:d}", "^b {n:d}"}, {1, 0}, 0));
}

/// Any split into chunks, and any place of take(), gives the same lines.
void chunks_do_not_matter() {
  std::string text;
  std::mt19937_64 random(7);
  const std::vector<std::string> pieces{"host0:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "host0:1:2 [0] NCCL INFO x", "\r\n", "\n", "\n",
                                        "\n\n", "plain text", "\x1b[0m", "\xE2\x82\xAC", "\xFF", std::string(1, '\0'), "no  route to host1", "\r", "host1:1:2 [0] NCCL INFO call all 12", "call", " all 3"};
  std::vector<std::string> patterns = kPatterns;
  patterns.push_back("rows ^call {name:k} {count:d}");
  for (int i = 0; i < 3000; ++i) text += pieces[random() % pieces.size()];
  text += std::string(70'000, 'z') + "\n" + std::string(LogScanner::kLongestLine + 1, 'z') + "\nlast";
  const Scanned whole = scanned(patterns, text, 20'000);
  CHECK(whole.rows.size() > 100);
  for (const auto& line : whole.lines) CHECK(is_utf8(line.text));
  for (const auto longest : std::vector<std::size_t>{1, 2, 7, 64, 1000, 65'537, 200'000}) {
    const Scanned split = scanned(patterns, text, 20'000, [&] { return random() % (longest + 1); });
    CHECK(split.lines == whole.lines);
    CHECK(split.rows == whole.rows);
    CHECK(same_counts(split.counts, whole.counts));
  }
}

/// Hosts, words, counts, budget and half a line of one file are not those of the next, and the grammar outlives who made it.
void a_fresh_scanner_knows_nothing_of_the_file_before() {
  const std::vector<std::string> patterns{"rows ^{collective:k}: opCount {op_count:i} sendbuff {send:x}", "Using network {network:w}"};
  const std::string text =
      "host1:1:2 [0] a.cc:7 (f) NCCL WARN unknown\n"
      "host1:1:2 [0] NCCL INFO Using network IB\n"
      "host1:1:2 [0] NCCL INFO AllReduce: opCount 1a sendbuff 0x7f00\n"
      "plain\nplain, past the budget\n";
  const Scanned alone = scanned(patterns, text, 40);
  CHECK_EQUAL(alone.counts.plain_left_out, 1);
  LogScanner next = [&] {
    LogScanner first = scanner_for(patterns, 40);
    first.feed("host0:9:9 [0] b.cc:8 (g) NCCL WARN unknown\nhost0:9:9 [0] NCCL INFO Broadcast: opCount 2 sendbuff 0x1\nplain\nhalf a line");
    return first.fresh(40);
  }();
  const Scanned after = scanned_by(next, text, [&] { return text.size(); });
  CHECK(after.lines == alone.lines);
  CHECK(after.rows == alone.rows);
  CHECK(same_counts(after.counts, alone.counts));
  CHECK_EQUAL(next.hosts().size(), 1u);
  CHECK_EQUAL(next.names(0, 0).size(), 1u);
}

/// It is no text: no template may fail because of it, wherever chunks end. Offsets stay those of the file; elsewhere it is text.
void a_byte_order_mark_is_left_out() {
  const std::string mark = "\xEF\xBB\xBF", line = "host0:1:2 [0] NCCL INFO Using network IB\n";
  for (const std::size_t size : {1, 2, 3, 100}) {
    const Scanned out = scanned(kPatterns, mark + line + line + mark + "plain\n", 1 << 20, [&] { return size; });
    CHECK_EQUAL(out.lines.size(), 3u);
    CHECK_EQUAL(out.lines[0].host, "host0");
    CHECK_EQUAL(out.lines[0].template_index, 1);
    CHECK_EQUAL(out.lines[0].byte_offset, 0);
    CHECK_EQUAL(out.lines[1].byte_offset, static_cast<std::int64_t>(mark.size() + line.size()));
    CHECK_EQUAL(out.lines[2].text, mark + "plain");
  }
  CHECK_EQUAL(scanned(kPatterns, mark + "\n").counts.empty_lines, 1);
}

/// Lines made to be slow: many heads, many keywords, many starts. half a MiB each, sanitizers on.
void hostile_lines_are_cheap() {
  std::vector<std::string> patterns;
  for (int i = 0; i < 20; ++i) patterns.push_back("key {a:s} key {b:w} key {c:s} y" + std::to_string(i));
  const auto start = std::chrono::steady_clock::now();
  for (const std::string piece : {"key ", "key y", "1: ", "NCCL ", "NCCL INFO ", "[1,2]<stdout>:", "[", "(", "\x1b[", "\x1b]", "\r", " ", " WARN ", "a:1:1 "}) {
    std::string text;
    while (text.size() < 1 << 19) {
      std::string line;
      while (line.size() < 60'000) line += piece;
      text += line + "\n";
    }
    scanned(patterns, text, 0);
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
}

}  // namespace

int main() {
  lines_that_mean_something_are_kept();
  order_of_templates();
  runs_of_blanks_and_tabs_select_the_same_template();
  terminal_output();
  strings_are_utf8();
  nul_bytes_are_kept_and_counted();
  long_lines_are_cut();
  the_last_line_may_lack_its_line_break();
  plain_lines_have_a_budget();
  names_are_bounded();
  lines_become_rows();
  numbers_too_long_are_unknown();
  words_of_rows_are_bounded();
  templates_with_rows_come_first();
  chunks_do_not_matter();
  a_fresh_scanner_knows_nothing_of_the_file_before();
  a_byte_order_mark_is_left_out();
  hostile_lines_are_cheap();
  return busbw::testing::failures != 0;
}
