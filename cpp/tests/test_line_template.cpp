// What a template takes, and with which fields.
#include "busbw/scan/line_template.hpp"

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "check.hpp"

using busbw::scan::LineTemplate;

namespace {

/// Fields joined by `|`, or "no".
std::string matched(std::string_view pattern, std::string_view message) {
  std::vector<std::string_view> fields;
  const LineTemplate shape(pattern);
  if (!shape.match(message, fields)) return "no";
  std::string out;
  for (const auto field : fields) {
    if (!out.empty()) out += '|';
    out += field;
  }
  CHECK_EQUAL(fields.size(), shape.fields().size());
  return out;
}

void digits() {
  CHECK_EQUAL(matched("rank {r:d} of", "rank 12 of"), "12");
  CHECK_EQUAL(matched("rank {r:d} of", "rank -1 of"), "-1");
  CHECK_EQUAL(matched("rank {r:d} of", "rank - of"), "no");
  CHECK_EQUAL(matched("rank {r:d} of", "rank  of"), "no");
  CHECK_EQUAL(matched("rank {r:d} of", "rank 1a of"), "no");
  CHECK_EQUAL(matched("rank {r:d}", "rank 123456789012345678901234567890"), "123456789012345678901234567890");
}

void hexadecimal() {
  CHECK_EQUAL(matched("comm {c:x} rank", "comm 0x55D0aF rank"), "0x55D0aF");
  CHECK_EQUAL(matched("comm {c:x} rank", "comm 1b000 rank"), "1b000");
  CHECK_EQUAL(matched("comm {c:x} rank", "comm 0x rank"), "no");
  CHECK_EQUAL(matched("comm {c:x} rank", "comm xyz rank"), "no");
  CHECK_EQUAL(matched("comm {c:x}", "comm 0x"), "0");  // a number, whatever follows
}

void decimal() {
  CHECK_EQUAL(matched("took {t:f} s", "took 1.5 s"), "1.5");
  CHECK_EQUAL(matched("took {t:f} s", "took -2 s"), "-2");
  CHECK_EQUAL(matched("took {t:f} s", "took +.5 s"), "+.5");
  CHECK_EQUAL(matched("took {t:f} s", "took 1e-3 s"), "1e-3");
  CHECK_EQUAL(matched("took {t:f} s", "took 1.5E+10 s"), "1.5E+10");
  CHECK_EQUAL(matched("took {t:f}.", "took 12."), "12");  // the stop ends the sentence
  CHECK_EQUAL(matched("took {t:f}e-", "took 1e-"), "1");
  for (const auto* text : {"took . s", "took - s", "took -. s", "took  s", "took 1.2.3 s", "took 1e s"}) CHECK_EQUAL(matched("took {t:f} s", text), "no");
}

void words() {
  CHECK_EQUAL(matched("via {v:w}", "via P2P/CUMEM/read now"), "P2P/CUMEM/read");
  CHECK_EQUAL(matched("via {v:w}/read", "via P2P/CUMEM/read"), "P2P/CUMEM");
  CHECK_EQUAL(matched("via {v:w} now", "via P2P/CUMEM \t now"), "P2P/CUMEM");
  CHECK_EQUAL(matched("via {v:w}", "via "), "no");
  CHECK_EQUAL(matched("Using {i:w}:{a:s}", "Using eth0:10.0.0.1<0>"), "eth0|10.0.0.1<0>");
  CHECK_EQUAL(matched("{i:w}: x", "a b: x"), "no");  // a pattern that begins with a field begins at the start
}

/// Shaped like x and w; what their columns hold differs.
void numbers_and_names() {
  CHECK_EQUAL(matched("comm {c:i} rank", "comm 0x55D0aF rank"), "0x55D0aF");
  CHECK_EQUAL(matched("comm {c:i} rank", "comm xyz rank"), "no");
  CHECK_EQUAL(matched("Algo {a:k} proto {p:k}", "Algo RING  proto LL128 x"), "RING|LL128");
  CHECK_EQUAL(matched("{i:k}: x", "a b: x"), "no");
}

/// A field whose name begins with _ takes part in the match and is not kept.
void fields_that_are_not_kept() {
  CHECK_EQUAL(matched("at {_a:x} count {c:d} of {_what:w} in {_rest:s}", "at 0x7f count 3 of bytes in all"), "3");
  CHECK_EQUAL(matched("at {_a:x} count {c:d}", "at zero count 3"), "no");
  CHECK_EQUAL(matched("x {_a:s} y {b:d}", "x 1 y z y 2"), "2");
}

/// A message may be padded where its first word is a field.
void leading_blanks() {
  CHECK_EQUAL(matched("{ranks:d} ranks have launched", "  30 ranks have launched"), "30");
  CHECK_EQUAL(matched("^{name:w} set to {value:s}", "\t NAME set to 1"), "NAME|1");
  CHECK_EQUAL(matched("{what:s} failed", "  it failed"), "it");
  CHECK_EQUAL(matched("^Trees {t:s}", " Trees a"), "no");
}

void texts() {
  CHECK_EQUAL(matched("why: {w:s}", "why: a b  c"), "a b  c");
  CHECK_EQUAL(matched("why: {w:s}", "why: "), "");
  CHECK_EQUAL(matched("Using {d:s}; OOB {o:s}", "Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>"), "[0]mlx5_0:1/IB [RO]|eth0:10.0.0.1<0>");
  CHECK_EQUAL(matched("{a:s} failed", "it all failed"), "it all");
}

/// A word or text ends at the first literal after which the rest fits.
void backtracking() {
  CHECK_EQUAL(matched("^{f:w}:{l:d} -> {c:d}", "a:b:12 -> 6"), "a:b|12|6");
  CHECK_EQUAL(matched("x {a:s} y {b:d}", "x 1 y z y 2"), "1 y z|2");
  CHECK_EQUAL(matched("rank {r:d} left", "rank x rank 3 left"), "3");  // the first literal may stand twice
  CHECK_EQUAL(matched("aab {r:d}", "aaab 3"), "3");
}

/// One blank in the pattern stands for one or more in the message, tabs too, but not for none.
void blanks() {
  CHECK_EQUAL(matched("no route {r:d}", "no \t  route   3"), "3");
  CHECK_EQUAL(matched("no   route {r:d}", "no route 3"), "3");
  CHECK_EQUAL(matched("no route {r:d}", "noroute 3"), "no");
  CHECK_EQUAL(matched("size {r:d} B", "size 3B"), "no");
}

void anchors() {
  CHECK_EQUAL(matched("^Trees {t:s}", "Trees a"), "a");
  CHECK_EQUAL(matched("^Trees {t:s}", "x Trees a"), "no");
  CHECK_EQUAL(matched("Trees {t:s}", "x Trees a"), "a");
  CHECK_EQUAL(matched("port {p:d}$", "port 1 "), "1");
  CHECK_EQUAL(matched("port {p:d}$", "port 1 x"), "no");
  CHECK_EQUAL(matched("port {p:d}$", "port 1 port 2"), "2");
  CHECK_EQUAL(matched("^ Rank {r:d}", "   Rank 1"), "1");
  CHECK_EQUAL(matched("~no IB {r:d}", "NO ib 3"), "3");
  CHECK_EQUAL(matched("^~no IB {r:d}", "No Ib 3"), "3");
  CHECK_EQUAL(matched("no IB {r:d}", "NO ib 3"), "no");
  CHECK_EQUAL(matched("^no IB$", "no IB"), "");
}

void braces() {
  CHECK_EQUAL(matched("channel{{Lo..Hi}}={{{low:d}..{high:d}}}", "channel{Lo..Hi}={0..15}"), "0|15");
  CHECK_EQUAL(matched("a {{b}}", "a {b}"), "");
}

void malformed_patterns_are_refused() {
  for (const auto* pattern : {"", " ", "^", "$", "~", "{a:d}", "^{a:d} {b:d}", "a {b", "a {b}", "a {b:}", "a {:d}", "a {b:q}", "a }", "a {b:d}{c:d}",
                              "a {b:d} {b:d} c", "a {b c:d}", "a {{b:d}"})
    CHECK_THROWS(std::invalid_argument, LineTemplate{pattern});
  try {
    LineTemplate{"a {b:q}"};
  } catch (const std::invalid_argument& error) {
    CHECK_EQUAL(std::string(error.what()), "template \"a {b:q}\": a field's type is one of d x i f w k s");
  }
}

/// A message that matches contains the keyword, whatever its runs of blanks.
void keyword() {
  CHECK_EQUAL(LineTemplate("^Channel {a:d}/{b:d} : {c:d}").keyword(), "Channel ");
  CHECK_EQUAL(LineTemplate("{n:w} set by {o:s}").keyword(), " set ");
  CHECK_EQUAL(LineTemplate("a  b{n:w}").keyword(), "a ");
}

/// 64 KiB made to backtrack cost a bounded number of readings. Without the bound this takes minutes.
void hostile_messages_are_cheap() {
  const auto repeated = [](std::string_view piece) {
    std::string out;
    while (out.size() + piece.size() <= 64 * 1024) out += piece;
    return out;
  };
  const auto start = std::chrono::steady_clock::now();
  CHECK_EQUAL(matched("x {a:s} y {b:s} y {c:s} y {d:s} z", repeated("x y ")), "no");
  CHECK_EQUAL(matched("{a:w}:{b:w}:{c:w}:{d:w}:{e:d}", repeated(":")), "no");
  CHECK_EQUAL(matched("~aaaaaaaaab {a:d}", repeated("a")), "no");
  CHECK_EQUAL(matched("a {a:s} b", repeated("a ")), "no");
  CHECK_EQUAL(matched("a {a:s} b", repeated(" ")), "no");
  CHECK_EQUAL(matched("a {a:s} b$", repeated("a b ") + "c"), "no");
  CHECK_EQUAL(matched("{a:s} {b:w}: b", "a" + repeated(" ")), "no");
  CHECK_EQUAL(matched("{a:s} {b:w}: b", "a" + repeated(" ") + "b: b"), "a|b");
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
  // Long is not hostile: one reading finds what stands at the end.
  CHECK_EQUAL(matched("end {a:d}", repeated("x ") + "end 3"), "3");
  CHECK_EQUAL(matched("x {a:s} end {b:d}", "x 1 " + repeated("e ") + " end 3").substr(0, 3), "1 e");
}

}  // namespace

int main() {
  digits();
  hexadecimal();
  decimal();
  words();
  numbers_and_names();
  fields_that_are_not_kept();
  leading_blanks();
  texts();
  backtracking();
  blanks();
  anchors();
  braces();
  malformed_patterns_are_refused();
  keyword();
  hostile_messages_are_cheap();
  return busbw::testing::failures != 0;
}
