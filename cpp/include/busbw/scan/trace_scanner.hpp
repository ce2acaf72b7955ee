/// Chrome traces, as PyTorch's profiler writes them: spans in columns, in one pass over chunks of any size.
///
/// What is kept: work of a GPU, calls of its runtime that launch or wait, annotations, and calls of collectives. All else is counted by category. An event is
/// parsed once; an args object is looked into only where its event is kept. Depth costs no stack.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace busbw::scan {

/// Spans, column by column, in the order of the file. Times: ns, as the file counts them. -1: not said.
struct TraceSpans {
  std::vector<std::int64_t> begin_ns, end_ns, correlation, external, line, byte_offset;
  std::vector<std::int32_t> category, name;  ///< codes of TraceScanner::words()
  std::vector<std::int32_t> process, lane;   ///< codes: pid, and tid, or of GPU work "device stream"
  std::vector<std::int32_t> device;
  std::vector<std::int32_t> args;  ///< index of the args of a collective, -1: none
};

class TraceScanner {
 public:
  enum class State { kStart, kMembers, kEvents, kDone, kDamaged };

  /// Kept spans at most; a larger trace is counted on, and says so.
  explicit TraceScanner(std::size_t most_spans) : most_spans_(most_spans) { code(""); }

  void feed(std::string_view chunk) {
    if (state_ == State::kDone || state_ == State::kDamaged) return;
    pending_.append(chunk);
    const char* at = pending_.data();
    const char* const end = at + pending_.size();
    const char* done = at;
    while (state_ != State::kDone && state_ != State::kDamaged && step(at, end)) done = at;
    const auto used = static_cast<std::size_t>(done - pending_.data());
    count_lines(used);
    pending_.erase(0, used);
    base_ += used;
    counted_ = 0;
    if (pending_.size() > kLargestValue) damaged("a value or an event is larger than 64 MiB");
  }

  /// The end of the file.
  void finish() { pending_.clear(); }

  State state() const { return state_; }
  /// What is wrong, and at which byte; empty: nothing.
  const std::string& problem() const { return problem_; }
  std::uint64_t problem_at() const { return problem_at_; }
  std::uint64_t events() const { return events_; }
  std::uint64_t without_time() const { return without_time_; }
  std::uint64_t left_out() const { return left_out_; }
  TraceSpans take() { return std::exchange(spans_, {}); }
  const std::vector<std::string>& args() const { return args_; }
  const std::deque<std::string>& words() const { return words_; }
  /// Top-level members but the events, as JSON text.
  const std::vector<std::pair<std::string, std::string>>& members() const { return members_; }
  /// Events and their time together by code of category.
  const std::unordered_map<std::int32_t, std::pair<std::uint64_t, std::int64_t>>& categories() const { return categories_; }

 private:
  static constexpr std::size_t kLargestValue = std::size_t{64} << 20;
  static constexpr std::size_t kMostWords = 1'000'000, kLongestWord = 200, kMostArgs = 4'000'000, kMostMembers = 256;
  static constexpr std::int64_t kUnknown = -1;

  static bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

  /// One top-level piece: a brace, a member, an event. False: more bytes are needed, or nothing goes on; `at` then means nothing.
  bool step(const char*& at, const char* end) {
    while (at != end && (is_blank(*at) || (*at == ',' && state_ != State::kStart))) ++at;
    if (at == end) return false;
    switch (state_) {
      case State::kStart:
        if (*at == '{') state_ = State::kMembers;
        else if (*at == '[') state_ = State::kEvents, bare_ = true;
        else if (static_cast<unsigned char>(*at) == 0xEF && end - at >= 3) return at += 3, true;  // a byte order mark
        else return damaged("neither an object nor a list begins here", at);
        ++at;
        return true;
      case State::kMembers: return member(at, end);
      case State::kEvents:
        if (*at == ']') {
          ++at;
          state_ = bare_ ? State::kDone : State::kMembers;
          return true;
        }
        if (*at == '{') return event(at, end);
        return damaged("an event is due here", at);
      default: return false;
    }
  }

  bool member(const char*& at, const char* end) {
    if (*at == '}') {
      ++at;
      state_ = State::kDone;
      return true;
    }
    std::string_view key;
    if (!key_of(at, end, key)) return false;
    if (key == "traceEvents" && *at == '[') {
      ++at;
      state_ = State::kEvents;
      return true;
    }
    std::string_view value;
    if (!skip(at, end, value) || at == end) return false;  // a number at the end of the chunk may go on
    if (members_.size() < kMostMembers) members_.emplace_back(key, value);
    return true;
  }

  /// A key, its colon, and blanks after it; `at` is then on the value.
  bool key_of(const char*& at, const char* end, std::string_view& key) {
    if (*at != '"') return damaged("a key is due here", at);
    if (!skip(at, end, key)) return false;
    key = key.substr(1, key.size() - 2);
    while (at != end && is_blank(*at)) ++at;
    if (at == end) return false;
    if (*at != ':') return damaged("a colon is due here", at);
    ++at;
    while (at != end && is_blank(*at)) ++at;
    return at != end;
  }

  /// A whole value, its text in `value`. False: it does not end here.
  bool skip(const char*& at, const char* end, std::string_view& value) {
    const char* const begin = at;
    if (*at == '"') {
      if (!skip_string(at, end)) return false;
    } else if (*at == '{' || *at == '[') {
      std::size_t depth = 0;
      do {
        const char c = *at;
        if (c == '"') {
          if (!skip_string(at, end)) return false;
          continue;
        }
        if (c == '{' || c == '[') ++depth;
        if (c == '}' || c == ']') --depth;
        ++at;
      } while (depth != 0 && at != end);
      if (depth != 0) return false;
    } else {
      while (at != end && *at != ',' && *at != '}' && *at != ']' && !is_blank(*at)) ++at;
      if (at == begin) return damaged("a value is due here", at);
    }
    value = {begin, static_cast<std::size_t>(at - begin)};
    return true;
  }

  static bool skip_string(const char*& at, const char* end) {
    for (const char* from = at + 1;;) {
      const auto* const quote = static_cast<const char*>(std::memchr(from, '"', static_cast<std::size_t>(end - from)));
      if (quote == nullptr) return false;
      std::size_t slashes = 0;
      for (const char* back = quote; *(back - 1) == '\\' && back - 1 > at; --back) ++slashes;
      if (slashes % 2 == 0) {
        at = quote + 1;
        return true;
      }
      from = quote + 1;
    }
  }

  struct Event {
    std::string_view phase, category, name, process, thread, begin, took, args;
  };

  bool event(const char*& at, const char* end) {
    const char* const first = at++;
    Event found;
    while (true) {
      while (at != end && (is_blank(*at) || *at == ',')) ++at;
      if (at == end) return false;
      if (*at == '}') break;
      std::string_view key, value;
      if (!key_of(at, end, key) || !skip(at, end, value)) return false;
      if (key == "ph") found.phase = value;
      else if (key == "cat") found.category = value;
      else if (key == "name") found.name = value;
      else if (key == "pid") found.process = value;
      else if (key == "tid") found.thread = value;
      else if (key == "ts") found.begin = value;
      else if (key == "dur") found.took = value;
      else if (key == "args") found.args = value;
    }
    ++at;
    ++events_;
    if (bare(found.phase) == "X") keep(found, static_cast<std::size_t>(first - pending_.data()));
    return true;
  }

  void keep(const Event& event, std::size_t at) {
    std::int64_t begin = 0, took = 0;
    const bool timed = nanoseconds(event.begin, begin) && nanoseconds(event.took, took) && took >= 0 && took < kLongestNs;
    if (!timed) {
      ++without_time_;
      return;
    }
    const std::int32_t category = code(bare(event.category));
    auto& [number, time] = categories_[category];
    ++number;
    time = time > std::numeric_limits<std::int64_t>::max() - took ? std::numeric_limits<std::int64_t>::max() : time + took;
    const std::string_view kind = bare(event.category), name = bare(event.name);
    const bool gpu = kind == "kernel" || kind == "gpu_memcpy" || kind == "gpu_memset";
    const bool runtime = kind == "cuda_runtime" || kind == "cuda_driver";
    const bool note = kind == "user_annotation";
    const bool call = kind == "cpu_op" && name == "record_param_comms";
    if (!gpu && !runtime && !note && !call) return;
    if (spans_.begin_ns.size() >= most_spans_) {
      ++left_out_;
      return;
    }
    const std::string_view stream = gpu ? argument(event.args, "stream") : std::string_view{};
    const std::string_view device = gpu ? argument(event.args, "device") : std::string_view{};
    spans_.begin_ns.push_back(begin);
    spans_.end_ns.push_back(begin + took);
    spans_.correlation.push_back(gpu || runtime ? integer(argument(event.args, "correlation")) : kUnknown);
    spans_.external.push_back(gpu || call ? integer(argument(event.args, "External id")) : kUnknown);
    count_lines(at);
    spans_.line.push_back(static_cast<std::int64_t>(lines_) + 1);
    spans_.byte_offset.push_back(static_cast<std::int64_t>(base_ + at));
    spans_.category.push_back(category);
    spans_.name.push_back(code(name));
    spans_.process.push_back(code(bare(event.process)));
    spans_.lane.push_back(code(bare(stream.empty() ? event.thread : stream)));
    const std::int64_t number_of_device = integer(device);
    spans_.device.push_back(number_of_device < 0 || number_of_device > 1 << 20 ? -1 : static_cast<std::int32_t>(number_of_device));
    const bool collective = call || (gpu && is_collective(name)) || (note && name.starts_with("gloo:"));
    spans_.args.push_back(collective && args_.size() < kMostArgs ? static_cast<std::int32_t>(args_.size()) : -1);
    if (spans_.args.back() >= 0) args_.emplace_back(event.args);
  }

  /// Kernels of NCCL and RCCL, old names and new: ncclKernel_, ncclDevKernel_, rcclGenericKernel.
  static bool is_collective(std::string_view name) {
    const auto at = name.find("ccl");
    return at != std::string_view::npos && at <= 1 && name.find("Kernel") != std::string_view::npos;
  }

  /// A member of an args object, as JSON text; empty: not there. Only top-level members count.
  static std::string_view argument(std::string_view args, std::string_view wanted) {
    if (args.empty() || args.front() != '{') return {};
    const char* at = args.data() + 1;
    const char* const end = args.data() + args.size();
    while (at != end) {
      while (at != end && (is_blank(*at) || *at == ',')) ++at;
      if (at == end || *at != '"') return {};
      const char* const key = at;
      if (!skip_string(at, end)) return {};
      const std::string_view name{key + 1, static_cast<std::size_t>(at - key) - 2};
      while (at != end && (is_blank(*at) || *at == ':')) ++at;
      if (at == end) return {};
      const char* const value = at;
      if (*at == '"') {
        if (!skip_string(at, end)) return {};
      } else {
        std::size_t depth = 0;
        while (at != end && (depth != 0 || (*at != ',' && *at != '}'))) {
          if (*at == '"') {
            if (!skip_string(at, end)) return {};
            continue;
          }
          if (*at == '{' || *at == '[') ++depth;
          if ((*at == '}' || *at == ']') && depth != 0) --depth;
          ++at;
        }
      }
      if (name != wanted) continue;
      const char* last = at;  // a number's end is a comma or a brace, perhaps behind a line's end
      while (last != value && is_blank(*(last - 1))) --last;
      return {value, static_cast<std::size_t>(last - value)};
    }
    return {};
  }

  static std::string_view bare(std::string_view text) {
    return text.size() >= 2 && text.front() == '"' ? text.substr(1, text.size() - 2) : text;
  }

  static std::int64_t integer(std::string_view text) {
    text = bare(text);
    std::int64_t value = 0;
    const auto [rest, wrong] = std::from_chars(text.data(), text.data() + text.size(), value);
    return wrong == std::errc{} && value >= 0 ? value : kUnknown;
  }

  static constexpr std::int64_t kLongestNs = std::int64_t{1} << 50;  // 13 days
  static constexpr double kLargestUs = 9e15;                         // 285 years

  /// Microseconds in decimal, to the nanosecond, which float64 would round.
  static bool nanoseconds(std::string_view text, std::int64_t& out) {
    text = bare(text);
    if (text.empty()) return false;
    const char* at = text.data();
    const char* const end = at + text.size();
    const bool negative = *at == '-';
    if (negative) ++at;
    std::int64_t whole = 0;
    const char* const digits = at;
    for (; at != end && *at >= '0' && *at <= '9'; ++at) {
      if (whole > 900'000'000'000'000) return false;
      whole = whole * 10 + (*at - '0');
    }
    if (at == digits) return false;
    std::int64_t fraction = 0, unit = 1000;
    if (at != end && *at == '.') {
      for (++at; at != end && *at >= '0' && *at <= '9'; ++at)
        if (unit > 1) fraction += (*at - '0') * (unit /= 10);
    }
    if (at != end) {  // an exponent
      double value = 0;
      const auto [rest, wrong] = std::from_chars(text.data(), end, value);
      if (wrong != std::errc{} || rest != end || !std::isfinite(value) || std::abs(value) > kLargestUs / 1000) return false;
      out = static_cast<std::int64_t>(std::llround(value * 1000));
      return true;
    }
    out = (whole * 1000 + fraction) * (negative ? -1 : 1);
    return true;
  }

  std::int32_t code(std::string_view word) {
    const bool whole = word.size() <= kLongestWord;
    if (!whole) {
      std::size_t size = kLongestWord;
      while (size > 0 && (static_cast<unsigned char>(word[size]) & 0xC0) == 0x80) --size;  // not within a character
      word = word.substr(0, size);
    }
    if (const auto found = codes_.find(word); found != codes_.end()) return found->second;
    if (words_.size() >= kMostWords) return 0;
    words_.emplace_back(word);
    return codes_[words_.back()] = static_cast<std::int32_t>(words_.size() - 1);
  }

  void count_lines(std::size_t until) {
    if (until <= counted_) return;
    lines_ += static_cast<std::uint64_t>(std::count(pending_.data() + counted_, pending_.data() + until, '\n'));
    counted_ = until;
  }

  bool damaged(const char* what, const char* at = nullptr) {
    state_ = State::kDamaged;
    problem_ = what;
    problem_at_ = base_ + (at == nullptr ? 0 : static_cast<std::uint64_t>(at - pending_.data()));
    return false;
  }

  std::size_t most_spans_;
  State state_ = State::kStart;
  bool bare_ = false;
  std::string pending_;
  std::uint64_t base_ = 0, lines_ = 0, events_ = 0, without_time_ = 0, left_out_ = 0, problem_at_ = 0;
  std::size_t counted_ = 0;
  std::string problem_;
  TraceSpans spans_;
  std::vector<std::string> args_;
  std::deque<std::string> words_;
  std::unordered_map<std::string_view, std::int32_t> codes_;
  std::vector<std::pair<std::string, std::string>> members_;
  std::unordered_map<std::int32_t, std::pair<std::uint64_t, std::int64_t>> categories_;
};

}  // namespace busbw::scan
