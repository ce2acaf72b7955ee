// Any bytes: no crash, the same lines whatever the chunks, strings that are UTF-8, and a count of lines that is that of line breaks.
// With BUSBW_LIBFUZZER an entry point of libFuzzer; otherwise a program that mutates lines: fuzz_scan RUNS SEED.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "scanned.hpp"

namespace {

using namespace std::string_view_literals;
using busbw::testing::is_utf8;
using busbw::testing::same_counts;
using busbw::testing::Scanned;
using busbw::testing::scanned;

const std::vector<std::string> kPatterns{
    "rows ^Channel {channel:d}/{_index:d} : {src:d}[{src_device:i}] -> {dst:d}[{dst_device:x}] [{direction:k}] via {via:s}",
    "rows ^{collective:k}: opCount {op_count:i} sendbuff {send:x} recvbuff {_recv:x} count {count:d} datatype {dtype:d}",
    "rows {time:f} us for {what:w} of {_rest:s} end",
    "rows ^~{size:d} ELEMENTS",
    "^{collective:w}: {bytes:d} Bytes -> Algo {algorithm:w} proto {protocol:w} channel{{Lo..Hi}}={{{low:d}..{high:d}}}",
    "^{file:w}:{file_line:d} ({function:w}) -> {code:d}",
    "Init timings - {function:w}: rank {rank:d} nranks {ranks:d} total {total_s:f} {parts:s}",
    "{name:w} set by {origin:s} to {value:s}",
    "~connect to {peer:w} returned {error:s}, retrying",
    "NVRM: Xid (PCI:{bus_id:w}): {xid:d}, {detail:s}",
    "^/{path:s}/libnccl.so.{version:w}$",
    "a {b:s} a {c:s} a {d:s} a",
};

void require(bool holds, const char* what) {
  if (holds) return;
  std::cerr << "fuzz_scan: " << what << '\n';
  std::abort();
}

/// seed picks the chunks.
void check(std::string_view text, std::uint64_t seed) {
  constexpr std::int64_t kBudget = 4096;
  const Scanned whole = scanned(kPatterns, text, kBudget);
  const auto breaks = std::count(text.begin(), text.end(), '\n');
  require(whole.counts.lines == breaks + (!text.empty() && text.back() != '\n'), "the count of lines is not that of line breaks");
  require(whole.counts.bytes == static_cast<std::int64_t>(text.size()), "the count of bytes is not the size");
  const auto& counts = whole.counts;
  const auto kept = static_cast<std::int64_t>(whole.lines.size() + whole.rows.size());
  require(kept + counts.empty_lines + counts.unrecognised_info + counts.plain_left_out == counts.lines, "a line is not accounted for");
  for (const auto& row : whole.rows) {
    require(row.line >= 1 && row.line <= counts.lines && is_utf8(row.host), "a row is from nowhere");
    for (const auto& field : row.fields) require(is_utf8(field), "a field of a row is no UTF-8");
  }
  std::int64_t line = 0;
  for (const auto& row : whole.lines) {
    require(row.line > line, "lines are not in order");
    line = row.line;
    require(is_utf8(row.text) && is_utf8(row.host) && is_utf8(row.location) && is_utf8(row.function), "a string is no UTF-8");
    for (const auto& field : row.fields) require(is_utf8(field), "a field is no UTF-8");
  }
  std::mt19937_64 random(seed);
  const std::size_t longest = std::size_t{1} << random() % 12;
  const Scanned split = scanned(kPatterns, text, kBudget, [&] { return random() % (longest + 1); });
  require(split.lines == whole.lines, "other chunks, other lines");
  require(split.rows == whole.rows, "other chunks, other rows");
  require(same_counts(split.counts, whole.counts), "other chunks, other counts");
}

}  // namespace

#ifdef BUSBW_LIBFUZZER

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  check({reinterpret_cast<const char*>(data), size}, size);
  return 0;
}

#else

namespace {

const std::vector<std::string> kCorpus{
    "host0:4242:4310 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0(6)/GDRDMA(PCI)/Shared\n",
    "host0:4242:4310 [0] NCCL INFO AllReduce: opCount 1a sendbuff 0x7f00 recvbuff 0x7f00 count 1024 datatype 7 op 0 root 0\n",
    "host0:4242:4310 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo TREE proto LL128 channel{Lo..Hi}={0..15}\n",
    "[2026-01-02 03:04:05] host0:4242:4310 [0] src/file.cc:123 (function) NCCL WARN Cuda failure 2 'out of memory'\n",
    "host0:4242:4310 [0] 12.345678 function:123 NCCL TRACE text\n",
    "host0:4242:4310 [0] NCCL INFO src/file.cc:123 (function) -> 6\n",
    "[prterun-host0-7@1,3]<stderr>: host0:1:2 [0] init.cu:61 WARN NCCL_IB_HCA set by environment to mlx5\n",
    "[pod/a/b] 2026-01-02T03:04:05.678Z worker-1  | (Worker pid=1, ip=10.0.0.1) [rank3]: 3: connect to 10.0.0.1<5> returned x, retrying\n",
    "Nov 30 09:00:00 host0 kernel: NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.\n",
    "  1.5e+3 us for step\xC3\xA4 of 3 7 end\n",
    "12345678901234567890 elements\n",
    "\x1b[32m/usr/lib/libnccl.so.2\x1b[0m\r\n",
    "\x1b]0;title\a| a | b |\r\n",
    "a a a a a a a a a a a a a a\n",
    "\xE2\x82\xAC\xF0\x9F\x98\x80\xC3\xA4\n",
    "Init timings - f: rank 0 nranks 2 total 1.42e-3 (kernels 0.20)\n",
};

/// Some lines of the corpus, then bytes changed, taken out, put in, repeated and moved.
std::string mutated(std::mt19937_64& random) {
  constexpr std::string_view kBytes = "\n\r\t \x1b[](){}<>:|,0179afxNC\0\x80\xBF\xC3\xE2\xF0\xFF"sv;
  std::string out;
  for (auto lines = random() % 6; lines-- > 0;) out += kCorpus[random() % kCorpus.size()];
  for (auto changes = random() % 24; changes-- > 0 && !out.empty();) {
    const std::size_t at = random() % out.size();
    const std::size_t size = 1 + random() % 24;
    switch (random() % 6) {
      case 0: out[at] = static_cast<char>(random()); break;
      case 1: out[at] = kBytes[random() % kBytes.size()]; break;
      case 2: out.erase(at, size); break;
      case 3: out.insert(at, out.substr(random() % out.size(), size)); break;
      case 4: out.insert(at, size, kBytes[random() % kBytes.size()]); break;
      default: out.insert(at, kCorpus[random() % kCorpus.size()].substr(0, size)); break;
    }
  }
  if (random() % 64 == 0) out.insert(out.size() / 2, 70'000, out.empty() ? 'x' : out[random() % out.size()]);
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: fuzz_scan RUNS SEED\n";
    return 2;
  }
  const std::uint64_t runs = std::strtoull(argv[1], nullptr, 10), seed = std::strtoull(argv[2], nullptr, 10);
  for (std::uint64_t run = 0; run < runs; ++run) {
    std::mt19937_64 random(seed * 1'000'003 + run);
    check(mutated(random), run);
  }
  std::cout << runs << " mutations\n";
  return 0;
}

#endif
