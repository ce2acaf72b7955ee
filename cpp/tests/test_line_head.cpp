// What is head and what is message, for every launcher and every version of NCCL's prefix. Lines are written from the formats that the
// programs document, not captured.
#include "busbw/scan/line_head.hpp"

#include <string>
#include <vector>

#include "check.hpp"

using namespace busbw::scan;

namespace {

struct Case {
  std::string line;
  Level level;
  std::string message;
  std::string host;
  std::int64_t rank = kUnknown, pid = kUnknown, tid = kUnknown, device = kUnknown;
};

void check_case(const Case& c) {
  const LineHead head = parse_line_head(c.line);
  const int before = busbw::testing::failures;
  CHECK_EQUAL(static_cast<int>(head.level), static_cast<int>(c.level));
  CHECK_EQUAL(head.message, c.message);
  CHECK_EQUAL(head.host, c.host);
  CHECK_EQUAL(head.rank, c.rank);
  CHECK_EQUAL(head.pid, c.pid);
  CHECK_EQUAL(head.tid, c.tid);
  CHECK_EQUAL(head.device, c.device);
  if (busbw::testing::failures != before) std::cerr << "  in the line: " << c.line << '\n';
}

/// NCCL's prefix by version (nccl debug.cc): host:pid:tid [device], then file:line and function of warnings and traces.
void nccl_prefix_of_every_version() {
  const auto kHost = "host0";
  check_case({"host0:4242:4310 [0] NCCL INFO Using network IB", Level::kInfo, "Using network IB", kHost, -1, 4242, 4310, 0});
  check_case({"host0:4242:4310 [7] NCCL INFO ", Level::kInfo, "", kHost, -1, 4242, 4310, 7});
  check_case({"host0:4242:4310 [7] NCCL INFO", Level::kInfo, "", kHost, -1, 4242, 4310, 7});
  check_case({"host0:4242:4310 NCCL CALL ncclAllReduce(1,2)", Level::kCall, "ncclAllReduce(1,2)", kHost, -1, 4242, 4310, -1});
  check_case({"host0:4242:4310 [0] 12.345678 bootstrapSend:123 NCCL TRACE sent", Level::kTrace, "sent", kHost, -1, 4242, 4310, 0});
  check_case({"host0:4242:4310 [1] src/init.cc:123 NCCL WARN Cuda failure", Level::kWarn, "Cuda failure", kHost, -1, 4242, 4310, 1});
  check_case({"[2026-01-02 03:04:05] host0:4242:4310 [1] src/init.cc:123 NCCL WARN Cuda failure", Level::kWarn, "Cuda failure", kHost, -1, 4242, 4310, 1});
  check_case({"host0:4242:4310 [1] [0] src/a.cc:1 (f) NCCL ATTN text", Level::kAttention, "text", kHost, -1, 4242, 4310, 0});
  check_case({"host0:4242:4310 [1] init.cu:61 WARN text", Level::kWarn, "text", kHost, -1, 4242, 4310, 1});
  // RCCL prints NCCL's marker.
  check_case({"host0:4242:4310 [0] NCCL INFO RCCL version 2.22.3+hip6.4", Level::kInfo, "RCCL version 2.22.3+hip6.4", kHost, -1, 4242, 4310, 0});
  // A time stamp of any format may stand in front.
  check_case({"[01/02 03:04:05] host0:4242:4310 [0] NCCL INFO a", Level::kInfo, "a", kHost, -1, 4242, 4310, 0});
  check_case({"03:04:05.123 host0:4242:4310 [0] NCCL INFO a", Level::kInfo, "a", kHost, -1, 4242, 4310, 0});
  // Hosts are names or addresses.
  check_case({"gpu-1.cluster.local:1:2 [0] NCCL INFO a", Level::kInfo, "a", "gpu-1.cluster.local", -1, 1, 2, 0});
  check_case({"10.0.0.1:1:2 [0] NCCL INFO a", Level::kInfo, "a", "10.0.0.1", -1, 1, 2, 0});
}

void places_of_warnings_and_traces() {
  const LineHead warn = parse_line_head("[2026-01-02 03:04:05] h:1:2 [0] src/misc/socket.cc:49 (socketProgress) NCCL WARN x");
  CHECK_EQUAL(warn.location, "src/misc/socket.cc:49");
  CHECK_EQUAL(warn.function, "socketProgress");
  CHECK_EQUAL(warn.time_ns, 1767323045'000'000'000);  // date -u -d '2026-01-02 03:04:05' +%s
  // __func__ of a lambda has brackets of its own.
  CHECK_EQUAL(parse_line_head("h:1:2 [0] a.cc:1 (operator()) NCCL WARN x").function, "operator()");
  CHECK_EQUAL(parse_line_head("h:1:2 [0] 1.5 commAlloc:7 NCCL TRACE x").location, "commAlloc:7");
  CHECK_EQUAL(parse_line_head("h:1:2 [0] NCCL INFO a.cc:1 (f) -> 6").function, "");
}

void lines_without_host() {
  check_case({"NCCL INFO Using network IB", Level::kInfo, "Using network IB", ""});
  check_case({"[3] NCCL INFO Using network IB", Level::kInfo, "Using network IB", "", -1, -1, -1, 3});
  check_case({"2: NCCL INFO Using network IB", Level::kInfo, "Using network IB", "", 2});
  check_case({"<host> NCCL INFO Using network IB", Level::kInfo, "Using network IB", ""});
  check_case({"NCCL version 2.30.7+cuda13.0", Level::kPlain, "NCCL version 2.30.7+cuda13.0", ""});
}

/// A launcher's prefix is taken off, with the rank it names; what NCCL says of the process wins over what Ray says.
void launcher_prefixes() {
  const std::string nccl = "host0:42:43 [1] NCCL INFO Using network IB";
  struct Prefix {
    std::string text;
    std::int64_t rank;
  };
  const std::vector<Prefix> prefixes{
      {"", -1},
      {"[1,3]<stdout>:", 3},
      {"[1,3]<stderr>:", 3},
      {"Fri Jan  2 03:04:05 2026[1,3]<stdout>:", 3},
      {"[prterun-host0-7@1,12]<stdout>: ", 12},
      {"3: ", 3},
      {" 3: ", 3},
      {"   12: ", 12},
      {"[rank3]:", 3},
      {"[rank3]: ", 3},
      {"[default3]:", 3},
      {"2026-01-02T03:04:05.678901234Z ", -1},
      {"2026-01-02T03:04:05.678901234Z stdout F ", -1},
      {"2026-01-02T03:04:05+01:00 ", -1},
      {"2026-01-02 03:04:05,678 ", -1},
      {"[pod/train-0/worker] ", -1},
      {"worker-1  | ", -1},
      {"project-worker-10  | ", -1},
      {"worker_1    | ", -1},
      {"(RayTrainWorker pid=1234, ip=10.0.0.1) ", -1},
      {"(train_fn pid=1234) ", -1},
      {"Nov 30 09:00:00 login1 slurmd[77]: ", -1},
      {"Nov  3 09:00:00 login1 train: ", -1},
      {"2026-01-02T03:04:05.678+00:00 login1 train[77]: ", -1},
      {"0: [rank5]:", 5},
      {"[1,3]<stdout>:[rank5]: ", 5},
      {"[pod/train-0/worker] 2026-01-02T03:04:05Z [default6]:", 6},
      {"2026-01-02T03:04:05Z worker-1  | 7: ", 7},
      {"[trainer3]:", 3},
      {"[trainer0|0]: ", 0},
      {"[trainer1|9]:", 9},
      {"[data_loader12]: ", 12},
      {"[worker 3]: ", 3},
      {"[rank 3]:", 3},
      {"(Worker pid=9, ip=10.0.0.1) [rank2]:2026-01-02 03:04:05,678 ", 2},
  };
  for (const auto& [text, rank] : prefixes) {
    check_case({text + nccl, Level::kInfo, "Using network IB", "host0", rank, 42, 43, 1});
    if (text.find("login1") == std::string::npos) {  // syslog's host has its own test
      const std::string line = text + "some text";
      const LineHead plain = parse_line_head(line);
      const int before = busbw::testing::failures;
      CHECK_EQUAL(plain.message, "some text");
      CHECK_EQUAL(plain.rank, rank);
      if (busbw::testing::failures != before) std::cerr << "  behind: " << text << '\n';
    }
  }
  check_case({"0:host0:42:43 [1] NCCL INFO a", Level::kInfo, "a", "host0", 0, 42, 43, 1});
}

void syslog_names_the_host() {
  check_case({"Nov 30 09:00:00 host0 kernel: NVRM: Xid (PCI:0000:1b:00): 79", Level::kPlain, "NVRM: Xid (PCI:0000:1b:00): 79", "host0"});
  check_case({"2026-01-02T03:04:05+0000 host0 kernel: NVRM: x", Level::kPlain, "NVRM: x", "host0"});
  check_case({"2026-01-02T03:04:05.678901+00:00 host0 nvidia-fabricmanager[9]: failed", Level::kPlain, "failed", "host0"});
  // A level and a logger's name are no host and no program.
  check_case({"2026-01-02T03:04:05Z INFO trainer: step 1", Level::kPlain, "INFO trainer: step 1", ""});
}

/// Time of 2026-01-02 03:04:05 UTC in zones; nanoseconds are kept.
void times() {
  constexpr std::int64_t kSecond = 1'000'000'000, kTime = 1767323045 * kSecond;
  CHECK_EQUAL(parse_line_head("2026-01-02T03:04:05.000000007Z x").time_ns, kTime + 7);
  CHECK_EQUAL(parse_line_head("2026-01-02T04:34:05+01:30 x").time_ns, kTime);
  CHECK_EQUAL(parse_line_head("2026-01-01T22:04:05-0500 x").time_ns, kTime);
  CHECK_EQUAL(parse_line_head("2026-01-02 03:04:05,25 x").time_ns, kTime + kSecond / 4);
  CHECK_EQUAL(parse_line_head("2026-13-02 03:04:05 x").time_ns, kUnknown);
  CHECK_EQUAL(parse_line_head("2026-01-02 03:04:05").message, "2026-01-02 03:04:05");  // what `date` prints
}

/// UCX and UCC (ucs/debug/log.c) and the kernel (dmesg -T) say when; UCX also which process. 1796042045 s: 2026-11-30 12:34:05 UTC.
void ucx_and_kernel_heads() {
  constexpr std::int64_t kSecond = 1'000'000'000, kTime = 1796042045 * kSecond;
  const LineHead ucx = parse_line_head("[1796042045.071678] [host0:8787 :0]     ucp_context.c:2725 UCX  INFO  Version 1.22.0");
  CHECK_EQUAL(ucx.time_ns, kTime + 71'678'000);
  CHECK_EQUAL(ucx.host, "host0");
  CHECK_EQUAL(ucx.pid, 8787);
  CHECK_EQUAL(ucx.tid, 0);
  CHECK_EQUAL(ucx.message, "ucp_context.c:2725 UCX  INFO  Version 1.22.0");
  const LineHead ranked = parse_line_head("[1,3]<stderr>:[1796042045.07] [host-1.example:12:a] ib_log.c:246 UCX ERROR x");
  CHECK_EQUAL(ranked.rank, 3);
  CHECK_EQUAL(ranked.host, "host-1.example");
  CHECK_EQUAL(ranked.tid, kUnknown);
  CHECK_EQUAL(ranked.message, "ib_log.c:246 UCX ERROR x");
  const LineHead kernel = parse_line_head("[Mon Nov 30 12:34:05 2026] NVRM: Xid (PCI:0000:1b:00): 79");
  CHECK_EQUAL(kernel.time_ns, kTime);
  CHECK_EQUAL(kernel.message, "NVRM: Xid (PCI:0000:1b:00): 79");
  CHECK_EQUAL(parse_line_head("[Sat Aug  1 10:20:41 2026] x").time_ns, 1785579641 * kSecond);
}

/// What looks like a prefix and is none stays.
void near_misses() {
  const std::vector<std::string> untouched{
      "12:34:56 text",
      "12:34:56.789 text",
      "[1668693503.47] host0:12:0 ib_log.c:246 UCX ERROR ibv_create_cq failed",
      "[123.470000] [host0:12:0] text",
      "[1668693503.470000] [epoch:5] text",
      "[1668693503.470000] [12:34:56] text",
      "[  123.456789] NVRM: x",
      "[Mon Nov 31x09:00:00 2026] NVRM: x",
      "the answer is 2: two",
      "| a | b |",
      "|a-1 | b |",
      "+-----+-----+",
      "mlx5_0 | ACTIVE | 400",
      "rank 3  | 5",
      "Error: x",
      "May not work: x",
      "0:host0",
      "3:text",
      "12345678: text",
      "[rank]: text",
      "[rank3] text",
      "[step 3]: text",
      "[trainer3|]: text",
      "[trainer|3]: text",
      "[3]: text",
      "[trainer3 ]: text",
      "[1,3] text",
      "list [1,3]<stdout>:text",
      "[a b,3]<stdout>:text",
      "[1,x]<stdout>:text",
      "(see pid 3) text",
      "(pid=3)text",
      "(a, b) text",
      "[pod/x",
      "Nov 30 09:00 host0 kernel: x",
      "2026-01-02 text",
      "2026-01-02T03:04:05text",
      "please set NCCL INFO in the environment",
      "look for NCCL WARN lines",
      "app.cc:61 WARN disk is slow",
      "host0:1:2 [0] disk 61 WARN slow",
      "NCCL INFORMATION",
      "xNCCL INFO y",
      "      3: six blanks are more than srun pads with",
      "",
      " ",
      "[",
      "(",
      "N",
      "NCCL ",
  };
  for (const auto& line : untouched) check_case({line, Level::kPlain, line, ""});
}

/// One label names the rank; a number behind it is text.
void a_number_behind_a_label_is_text() {
  check_case({"0: 1: eth0", Level::kPlain, "1: eth0", "", 0});
  check_case({"[rank3]: 2: x", Level::kPlain, "2: x", "", 3});
  check_case({"[1,3]<stdout>: 2: x", Level::kPlain, " 2: x", "", 3});
}

void a_time_is_no_process() {
  check_case({"03:04:05 [0] NCCL INFO a", Level::kInfo, "a", "", -1, -1, -1, 0});
  CHECK_EQUAL(parse_line_head("03:04:05 [0] NCCL INFO a").location, "");
}

/// Numbers of more than 18 digits are no ids; nothing overflows.
void long_numbers() {
  const LineHead head = parse_line_head("host0:99999999999999999999:1 [99999999999999999999] NCCL INFO a");
  CHECK_EQUAL(head.pid, kUnknown);
  CHECK_EQUAL(head.device, kUnknown);
  CHECK_EQUAL(parse_line_head("99999999999999999999: a").rank, kUnknown);
  CHECK_EQUAL(parse_line_head("2026-01-02T03:04:05.99999999999999999999999Z a").message, "a");
}

}  // namespace

int main() {
  nccl_prefix_of_every_version();
  places_of_warnings_and_traces();
  lines_without_host();
  launcher_prefixes();
  syslog_names_the_host();
  times();
  ucx_and_kernel_heads();
  near_misses();
  a_number_behind_a_label_is_text();
  a_time_is_no_process();
  long_numbers();
  return busbw::testing::failures != 0;
}
