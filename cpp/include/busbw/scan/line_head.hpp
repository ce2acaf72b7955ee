/// What stands in front of a message: launcher prefixes, time stamps, NCCL's host:pid:tid [device].
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace busbw::scan {

/// Who wrote a line. kPlain: no NCCL marker on it.
enum class Level : std::int8_t { kPlain = 0, kInfo, kWarn, kTrace, kCall, kAttention };

inline constexpr std::int64_t kUnknown = -1;

/// The parts of one line. Views point into the line that was parsed.
struct LineHead {
  Level level = Level::kPlain;
  std::int64_t rank = kUnknown;    ///< as the launcher numbered the stream
  std::int64_t pid = kUnknown;
  std::int64_t tid = kUnknown;
  std::int64_t device = kUnknown;  ///< CUDA device in NCCL's brackets
  std::int64_t time_ns = kUnknown; ///< printed wall clock as ns since 1970; zone as printed, UTC where none is
  std::string_view host;
  std::string_view location;       ///< file:line of a WARN
  std::string_view function;
  std::string_view message;        ///< what is left
};

namespace detail {

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
constexpr bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
constexpr bool is_blank(char c) { return c == ' ' || c == '\t'; }

constexpr std::string_view trim_left(std::string_view s) {
  while (!s.empty() && is_blank(s.front())) s.remove_prefix(1);
  return s;
}
constexpr std::string_view trim_right(std::string_view s) {
  while (!s.empty() && is_blank(s.back())) s.remove_suffix(1);
  return s;
}

/// Decimal number at the front of s, at most 18 digits; the digits are taken off.
inline std::optional<std::int64_t> take_number(std::string_view& s) {
  std::size_t n = 0;
  std::int64_t value = 0;
  while (n < s.size() && n < 18 && is_digit(s[n])) value = value * 10 + (s[n++] - '0');
  if (n == 0) return std::nullopt;
  s.remove_prefix(n);
  return value;
}

inline std::optional<std::int64_t> whole_number(std::string_view s) {
  auto value = take_number(s);
  return s.empty() ? value : std::nullopt;
}

inline bool take(std::string_view& s, std::string_view prefix) {
  if (!s.starts_with(prefix)) return false;
  s.remove_prefix(prefix.size());
  return true;
}

/// Days since 1970-01-01 of a proleptic Gregorian date (H. Hinnant, chrono-compatible low-level date algorithms).
constexpr std::int64_t days_from_civil(std::int64_t y, std::int64_t m, std::int64_t d) {
  y -= m <= 2;
  const std::int64_t era = (y >= 0 ? y : y - 399) / 400;
  const std::int64_t yoe = y - era * 400;
  const std::int64_t doy = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;
  const std::int64_t doe = yoe * 365 + yoe / 4 - yoe / 100 + doy;
  return era * 146097 + doe - 719468;
}

/// `Z`, `+01:00`, `+0100` or nothing; seconds east of Greenwich.
inline std::int64_t take_zone(std::string_view& s) {
  if (take(s, "Z") || s.size() < 5 || (s[0] != '+' && s[0] != '-')) return 0;
  const std::size_t minutes = s[3] == ':' ? 4 : 3;
  if (s.size() < minutes + 2 || !is_digit(s[1]) || !is_digit(s[2]) || !is_digit(s[minutes]) || !is_digit(s[minutes + 1])) return 0;
  const auto two_digits = [&](std::size_t at) { return (s[at] - '0') * 10 + (s[at + 1] - '0'); };
  const int seconds = two_digits(1) * 3600 + two_digits(minutes) * 60;
  const bool west = s[0] == '-';
  s.remove_prefix(minutes + 2);
  return west ? -seconds : seconds;
}

/// `2026-01-02T03:04:05.678Z`, `2026-01-02 03:04:05,678`, with or without zone. Takes it off and returns ns.
inline std::optional<std::int64_t> take_date_time(std::string_view& s) {
  std::string_view rest = s;
  if (rest.size() < 19 || rest[4] != '-' || rest[7] != '-') return std::nullopt;
  const auto year = take_number(rest);
  if (!year || *year < 1970 || *year > 2200 || !take(rest, "-")) return std::nullopt;
  const auto month = take_number(rest);
  if (!month || *month < 1 || *month > 12 || !take(rest, "-")) return std::nullopt;
  const auto day = take_number(rest);
  if (!day || *day < 1 || *day > 31 || rest.empty() || (rest[0] != 'T' && rest[0] != ' ' && rest[0] != '_')) return std::nullopt;
  rest.remove_prefix(1);
  const auto hour = take_number(rest);
  if (!hour || *hour > 24 || !take(rest, ":")) return std::nullopt;
  const auto minute = take_number(rest);
  if (!minute || *minute > 59 || !take(rest, ":")) return std::nullopt;
  const auto second = take_number(rest);
  if (!second || *second > 60) return std::nullopt;
  std::int64_t fraction_ns = 0;
  if (!rest.empty() && (rest[0] == '.' || rest[0] == ',') && rest.size() > 1 && is_digit(rest[1])) {
    rest.remove_prefix(1);
    std::int64_t unit = 100'000'000;
    while (!rest.empty() && is_digit(rest[0])) {
      fraction_ns += (rest[0] - '0') * unit;
      unit /= 10;
      rest.remove_prefix(1);
    }
  }
  const std::int64_t zone_s = take_zone(rest);
  s = rest;
  const std::int64_t seconds = days_from_civil(*year, *month, *day) * 86400 + *hour * 3600 + *minute * 60 + *second - zone_s;
  return seconds * 1'000'000'000 + fraction_ns;
}

inline bool is_month(std::string_view s) {
  constexpr std::array<std::string_view, 12> kMonths{"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  for (auto month : kMonths)
    if (s.starts_with(month) && s.size() > 3 && s[3] == ' ') return true;
  return false;
}

/// `host0 kernel: `, `host0 python3[42]: ` of syslog and journalctl, behind their time: the host is kept.
inline bool take_syslog_origin(std::string_view& s, LineHead& head, bool any_program) {
  const std::string_view front = s.substr(0, 320);  // a host name has at most 253 bytes (RFC 1035)
  const auto blank = front.find(' ');
  if (blank == std::string_view::npos || blank == 0) return false;
  const std::string_view rest = front.substr(blank + 1);
  const auto colon = rest.find(": ");
  if (colon == std::string_view::npos || colon == 0 || colon > 40) return false;
  const std::string_view program = rest.substr(0, colon);
  if (program.find(' ') != std::string_view::npos || !is_letter(program.front())) return false;
  const auto open = program.rfind('[');
  const bool numbered = program.back() == ']' && open != std::string_view::npos && whole_number(program.substr(open + 1, program.size() - open - 2));
  if (!any_program && !numbered && program != "kernel") return false;
  head.host = front.substr(0, blank);
  s.remove_prefix(blank + 1 + colon + 2);
  return true;
}

/// `Nov 30 09:00:00 host0 kernel: `. The year is not printed, so no time is kept.
inline bool take_syslog(std::string_view& s, LineHead& head) {
  if (!is_month(s)) return false;
  std::string_view rest = trim_left(s.substr(4));
  if (!take_number(rest) || !take(rest, " ") || !take_number(rest) || !take(rest, ":") || !take_number(rest) || !take(rest, ":") ||
      !take_number(rest) || !take(rest, " ") || !take_syslog_origin(rest, head, true))
    return false;
  s = rest;
  return true;
}

/// Takes `:` and the number behind it off the end of s; at most 18 digits.
inline std::optional<std::int64_t> take_last_number(std::string_view& s) {
  std::size_t begin = s.size();
  std::int64_t value = 0, unit = 1;
  while (begin > 0 && s.size() - begin < 18 && is_digit(s[begin - 1])) value += (s[--begin] - '0') * unit, unit *= 10;
  if (begin == s.size() || begin == 0 || s[begin - 1] != ':') return std::nullopt;
  s.remove_suffix(s.size() - begin + 1);
  return value;
}

/// `[1796022754.765432] [host0:8787 :0] ` of UCX and UCC (ucs/debug/log.c, ucs_log_print: seconds since the epoch, the pid padded to five).
/// The source file, the level and the message stay.
inline bool take_ucx_head(std::string_view& s, LineHead& head) {
  std::string_view rest = s;
  if (!take(rest, "[")) return false;
  const auto seconds = take_number(rest);
  if (!seconds || *seconds < 1'000'000 || *seconds > 7'258'118'400 || !take(rest, ".")) return false;  // up to the year 2200
  std::int64_t fraction_ns = 0, unit = 100'000'000;
  if (rest.empty() || !is_digit(rest.front())) return false;
  while (!rest.empty() && is_digit(rest.front())) {
    fraction_ns += (rest.front() - '0') * unit;
    unit /= 10;
    rest.remove_prefix(1);
  }
  if (!take(rest, "] [")) return false;
  const auto close = rest.substr(0, 320).find(']');
  if (close == std::string_view::npos) return false;
  std::string_view process = rest.substr(0, close);
  const auto thread = process.rfind(':');
  if (thread == std::string_view::npos) return false;
  const auto tid = whole_number(process.substr(thread + 1));
  process = trim_right(process.substr(0, thread));
  const auto pid = take_last_number(process);
  if (!pid || process.empty() || process.find(' ') != std::string_view::npos || whole_number(process)) return false;  // 12:34:56 is a time
  head.time_ns = *seconds * 1'000'000'000 + fraction_ns;
  head.host = process;
  head.pid = *pid;
  if (tid) head.tid = *tid;
  s = trim_left(rest.substr(close + 1));
  return true;
}

/// `[Mon Nov 30 09:00:00 2026] ` of dmesg -T: local time without a zone, taken as UTC like every other.
inline bool take_dmesg_time(std::string_view& s, LineHead& head) {
  std::string_view rest = s;
  if (rest.size() < 27 || !take(rest, "[") || rest[3] != ' ' || !is_letter(rest[0])) return false;
  rest.remove_prefix(4);
  constexpr std::string_view kMonths = "JanFebMarAprMayJunJulAugSepOctNovDec";
  const auto at = kMonths.find(rest.substr(0, 3));
  if (at == std::string_view::npos || at % 3 != 0) return false;
  rest = trim_left(rest.substr(3));
  const auto day = take_number(rest);
  if (!day || *day < 1 || *day > 31 || !take(rest, " ")) return false;
  const auto hour = take_number(rest);
  if (!hour || *hour > 24 || !take(rest, ":")) return false;
  const auto minute = take_number(rest);
  if (!minute || *minute > 59 || !take(rest, ":")) return false;
  const auto second = take_number(rest);
  if (!second || *second > 60 || !take(rest, " ")) return false;
  const auto year = take_number(rest);
  if (!year || *year < 1970 || *year > 2200 || !take(rest, "] ")) return false;
  const std::int64_t days = days_from_civil(*year, static_cast<std::int64_t>(at / 3) + 1, *day);
  head.time_ns = (days * 86400 + *hour * 3600 + *minute * 60 + *second) * 1'000'000'000;
  s = rest;
  return true;
}

/// mpirun --tag-output: `[1,3]<stdout>:`, also with a date glued in front. prterun puts a blank behind: `[prterun-host0-7@1,3]<stderr>: `.
inline bool take_mpirun_tag(std::string_view& s, LineHead& head) {
  const std::string_view front = s.substr(0, 160);
  const auto close = front.find("]<std");
  const auto open = front.rfind('[', close);
  if (close == std::string_view::npos || open == std::string_view::npos || open > 40) return false;
  if (open != 0 && !is_digit(front[open - 1])) return false;
  std::string_view rest = s.substr(close + 5);
  if (!take(rest, "out>") && !take(rest, "err>")) return false;
  const std::string_view tag = front.substr(open + 1, close - open - 1);
  const auto comma = tag.rfind(',');
  if (comma == std::string_view::npos || comma == 0 || tag.find(' ') != std::string_view::npos) return false;
  const auto rank = whole_number(tag.substr(comma + 1));
  if (!rank || !take(rest, ":")) return false;
  if (tag.find('@') != std::string_view::npos) take(rest, " ");
  head.rank = *rank;
  s = rest;
  return true;
}

/// `[rank3]:` of torchrun and PyTorch, `[default3]:` and `[trainer0|3]:` of elastic agents, `[worker 3]:`. Behind the bar stands the rank in
/// the job (a guess: it is never below the one before it). Only for those few words with a blank: `[step 3]:` counts something else.
inline bool take_role_tag(std::string_view& s, LineHead& head) {
  std::size_t letters = 1;
  while (letters < s.size() && letters <= 32 && (is_letter(s[letters]) || s[letters] == '_')) ++letters;
  const std::string_view role = s.substr(1, letters - 1);
  if (role.empty()) return false;
  std::string_view rest = s.substr(letters);
  if (take(rest, " ") && role != "rank" && role != "worker" && role != "trainer") return false;
  auto rank = take_number(rest);
  if (!rank || (take(rest, "|") && !(rank = take_number(rest))) || !take(rest, "]:")) return false;
  head.rank = *rank;
  take(rest, " ");
  s = rest;
  return true;
}

/// srun --label: `3: `, also padded. Not `0:host`, not `12:34:56`. Behind another label such a number belongs to the text.
inline bool take_srun_label(std::string_view& s, LineHead& head) {
  if (head.rank != kUnknown) return false;
  std::string_view rest = trim_left(s);
  if (s.size() - rest.size() > 5) return false;
  const std::size_t before = rest.size();
  const auto rank = take_number(rest);
  if (!rank || before - rest.size() > 6 || !take(rest, ": ")) return false;
  head.rank = *rank;
  s = rest;
  return true;
}

/// Container front ends: `[pod/name/container] ` (kubectl --prefix), `worker-1  | ` (docker compose: cmd/formatter/logs.go pads the
/// longest name with one blank, so that at least two stand before the bar).
inline bool take_container_tag(std::string_view& s) {
  if (s.starts_with("[pod/")) {
    const auto end = s.substr(0, 640).find("] ");  // pod and container names have at most 253 bytes each
    if (end == std::string_view::npos) return false;
    s.remove_prefix(end + 2);
    return true;
  }
  const std::string_view front = s.substr(0, 96);
  const auto blank = front.find(' ');
  if (blank == std::string_view::npos || blank < 2 || !is_digit(front[blank - 1])) return false;
  std::string_view name = front.substr(0, blank);
  while (!name.empty() && is_digit(name.back())) name.remove_suffix(1);
  if (name.size() < 2 || (name.back() != '-' && name.back() != '_')) return false;
  for (const char c : name)
    if (!is_letter(c) && !is_digit(c) && c != '-' && c != '_' && c != '.') return false;
  std::size_t bar = blank;
  while (bar < front.size() && front[bar] == ' ') ++bar;
  if (bar < blank + 2 || !front.substr(bar).starts_with("| ")) return false;
  s.remove_prefix(bar + 2);
  return true;
}

/// `stdout F ` behind the time of a file that a container runtime wrote (Kubernetes CRI; F full line, P part of one).
inline bool take_container_stream(std::string_view& s) {
  if (!s.starts_with("stdout F ") && !s.starts_with("stderr F ") && !s.starts_with("stdout P ") && !s.starts_with("stderr P ")) return false;
  s.remove_prefix(9);
  return true;
}

/// Ray: `(RayTrainWorker pid=1234, ip=10.0.0.1) `. The pid is that of the process that wrote.
inline bool take_ray_tag(std::string_view& s, LineHead& head) {
  if (!s.starts_with("(")) return false;
  const std::string_view front = s.substr(0, 160);
  const auto mark = front.find("pid=");
  if (mark == std::string_view::npos || (front[mark - 1] != ' ' && front[mark - 1] != '(')) return false;
  std::string_view rest = front.substr(mark + 4);
  const auto pid = take_number(rest);
  if (!pid || (!rest.starts_with(") ") && !rest.starts_with(", "))) return false;
  const auto end = front.find(") ", mark);
  if (end == std::string_view::npos) return false;
  head.pid = *pid;
  s.remove_prefix(end + 2);
  return true;
}

/// One prefix of a launcher, container or logger, if there is one.
inline bool take_prefix(std::string_view& s, LineHead& head) {
  if (s.empty()) return false;
  const char c = s.front();
  if (c == '[') {
    if (take_role_tag(s, head)) return true;
    std::string_view rest = s.substr(1);
    if (const auto time = take_date_time(rest); time && take(rest, "]")) {
      head.time_ns = *time;
      take(rest, " ");
      s = rest;
      return true;
    }
    if (take_ucx_head(s, head) || take_dmesg_time(s, head)) return true;
    return take_mpirun_tag(s, head) || take_container_tag(s);
  }
  if (c == '(') return take_ray_tag(s, head);
  if (is_digit(c)) {
    std::string_view rest = s;
    if (const auto time = take_date_time(rest); time && !rest.empty() && is_blank(rest.front())) {
      head.time_ns = *time;
      s = rest.substr(1);
      if (!take_container_stream(s)) take_syslog_origin(s, head, false);
      return true;
    }
    return take_srun_label(s, head) || take_container_tag(s);
  }
  if (c == ' ') return take_srun_label(s, head);
  if (c >= 'A' && c <= 'Z' && (take_syslog(s, head) || take_mpirun_tag(s, head))) return true;
  return take_container_tag(s);
}

/// NCCL's marker, such as `NCCL INFO `: what is before it is head, what is behind it is message.
struct Marker {
  std::size_t begin = std::string_view::npos;
  std::size_t end = 0;
  Level level = Level::kPlain;
  bool needs_process = false;  ///< a marker only where host:pid:tid is in front
};

/// Level whose word stands at the front of s, as a whole word; kPlain if none.
inline Level level_named(std::string_view s) {
  struct Word {
    std::string_view text;
    Level level;
  };
  constexpr std::array<Word, 5> kWords{{{"INFO", Level::kInfo}, {"WARN", Level::kWarn}, {"TRACE", Level::kTrace}, {"CALL", Level::kCall},
                                        {"ATTN", Level::kAttention}}};
  for (const auto& known : kWords)
    if (s.starts_with(known.text) && (s.size() == known.text.size() || is_blank(s[known.text.size()]))) return known.level;
  return Level::kPlain;
}

/// Whether text may stand in front of a marker: nothing, or what ends like a head and unlike a sentence.
inline bool may_be_head(std::string_view text) {
  text = trim_right(text);
  if (text.empty()) return true;
  for (std::size_t i = text.size(); i > 0 && !is_blank(text[i - 1]); --i)
    if (std::string_view("])>|:").find(text[i - 1]) != std::string_view::npos) return true;
  return false;
}

/// The first marker in the first 512 bytes of s.
inline Marker find_marker(std::string_view s) {
  const std::string_view front = s.substr(0, 512);
  for (std::size_t at = front.find('N'); at != std::string_view::npos; at = front.find('N', at + 1)) {
    if (!front.substr(at).starts_with("NCCL ") || (at != 0 && !is_blank(front[at - 1]))) continue;
    const Level level = level_named(s.substr(at + 5));
    if (level == Level::kPlain || !may_be_head(front.substr(0, at))) continue;
    const std::size_t end = at + 5 + (level == Level::kTrace ? 5 : 4);
    return {at, end < s.size() ? end + 1 : end, level, false};
  }
  // NCCL up to 2.3 printed `host0:42:43 [0] init.cu:61 WARN text`.
  const auto warn = front.find(" WARN ");
  if (warn != std::string_view::npos && warn > 0 && is_digit(front[warn - 1])) return {warn + 1, warn + 6, Level::kWarn, true};
  return {};
}

/// Takes the last blank-separated word off s.
inline std::string_view take_last_word(std::string_view& s) {
  s = trim_right(s);
  std::size_t begin = s.size();
  while (begin > 0 && !is_blank(s[begin - 1])) --begin;
  std::string_view word = s;
  word.remove_prefix(begin);
  s.remove_suffix(word.size());
  return word;
}

/// `host0:4242:4310`; the host may carry a launcher's `0:` in front.
inline bool parse_process(std::string_view word, LineHead& head) {
  const auto tid = take_last_number(word);
  if (!tid) return false;
  const auto pid = take_last_number(word);
  if (!pid) return false;
  std::string_view host = word;
  std::optional<std::int64_t> rank;
  if (const auto colon = host.rfind(':'); colon != std::string_view::npos) {
    rank = whole_number(host.substr(0, colon));
    host.remove_prefix(colon + 1);
  }
  if (host.empty() || whole_number(host)) return false;  // 12:34:56 is a time
  if (rank) head.rank = *rank;
  head.host = host;
  head.pid = *pid;
  head.tid = *tid;
  return true;
}

/// Everything before NCCL's marker, read from the right: (function), file:line, [device], host:pid:tid. Whether the last was found.
inline bool parse_before_marker(std::string_view s, LineHead& head) {
  s = trim_right(s);
  if (s.ends_with(")")) {
    const auto open = s.rfind(" (");  // a name such as operator() has brackets of its own
    if (open != std::string_view::npos) {
      head.function = s.substr(open + 2, s.size() - open - 3);
      s = s.substr(0, open);
    }
  }
  for (int words = 0; words < 5; ++words) {
    const std::string_view word = take_last_word(s);
    if (word.empty()) return false;
    if (word.front() == '[' && word.back() == ']') {
      if (const auto device = whole_number(word.substr(1, word.size() - 2)); device && head.device == kUnknown) head.device = *device;
      continue;
    }
    if (parse_process(word, head)) return true;
    const auto colon = word.rfind(':');
    if (colon != std::string_view::npos && colon > 0 && head.location.empty() && whole_number(word.substr(colon + 1)) &&
        !is_digit(word.front()))
      head.location = word;
  }
  return false;
}

}  // namespace detail

/// Splits one line (no line break, no escape sequences) into head and message.
inline LineHead parse_line_head(std::string_view line) {
  LineHead head;
  std::string_view rest = line;
  for (int prefixes = 0; prefixes < 6 && detail::take_prefix(rest, head); ++prefixes) {
  }
  const detail::Marker marker = detail::find_marker(rest);
  if (marker.level != Level::kPlain) {
    LineHead with_process = head;
    const bool has_process = detail::parse_before_marker(rest.substr(0, marker.begin), with_process);
    if (!marker.needs_process || (has_process && !with_process.location.empty())) {
      with_process.level = marker.level;
      with_process.message = rest.substr(marker.end);
      return with_process;
    }
  }
  head.message = rest;
  return head;
}

}  // namespace busbw::scan
