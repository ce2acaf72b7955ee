/// The shape of one log message: literals and named fields, written as text, matched without regular expressions.
#pragma once

#include <algorithm>
#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace busbw::scan {

/// What a field looks like and, where lines become rows, what its column holds. The letters are those of the pattern language.
enum class FieldType : char {
  kDigits = 'd',   ///< digits with an optional minus; an integer
  kHex = 'x',      ///< hexadecimal digits with or without 0x; their text
  kNumber = 'i',   ///< the same; an integer
  kDecimal = 'f',  ///< a decimal number
  kWord = 'w',     ///< a run without blanks that ends before the next literal
  kName = 'k',     ///< the same, of a small set: algorithms, protocols, directions; stored once a distinct word
  kText = 's',     ///< anything before the next literal (the rest, if last)
};

/// Bytes that a message may have in three places, blanks in front taken off: necessary for a match, not sufficient.
struct StartBytes {
  std::bitset<256> first;   ///< its first byte
  std::bitset<256> last;    ///< the last byte of its first word
  std::bitset<256> second;  ///< the first byte of its second word; that of '\n' where there is none
};

/// `Channel {channel:d}/{index:d} : {src:d}[{src_device:x}] -> ...`
///
/// A field is written {name:type}; its type is a letter of FieldType. One whose name begins with _ is matched and not kept.
/// One blank in a literal stands for one or more blanks. `^` in front: at the start of the message; `$` behind: at its
/// end. `~` in front (after `^`): ASCII case is ignored. `{{` and `}}` are braces.
/// A pattern that begins with a field begins at the start of the message, with or without ^; blanks there are passed over.
/// Fields are not tried shorter than they can be, but for `w`, `k` and `s`, which end at the first literal after which the rest fits.
class LineTemplate {
 public:
  /// Throws std::invalid_argument with the pattern and what is wrong with it.
  explicit LineTemplate(std::string_view pattern) { parse(pattern); }

  const std::vector<std::string>& fields() const { return fields_; }

  /// Types of the fields, in their order.
  const std::vector<FieldType>& types() const { return types_; }

  /// Whether a message matches from its start or not at all.
  bool begins_at_start() const { return anchored_start_ || parts_.front().field(); }

  /// What a message that matches from its start begins with.
  StartBytes start_bytes() const {
    StartBytes out{any_byte(), any_byte(), any_byte()};
    std::size_t literal = 0;
    if (parts_.front().field()) {
      if (*parts_.front().type == FieldType::kText) return out;
      out.first = bytes_of(*parts_.front().type);
      if (parts_.size() == 1) return out;
      literal = 1;
    }
    const std::string& text = parts_[literal].literal;
    const std::size_t blank_at = text.find(' ');
    if (literal == 0 && blank_at != 0) out.first = bytes_of(text.front());
    if (blank_at == kNowhere || (literal == 0 && blank_at == 0)) return out;  // the first word goes on, or a blank is in front of it
    if (blank_at > 0) out.last = bytes_of(text[blank_at - 1]);
    if (blank_at + 1 < text.size()) out.second = bytes_of(text[blank_at + 1]);
    else if (literal + 1 < parts_.size()) out.second = bytes_of(*parts_[literal + 1].type);
    return out;
  }

  /// The piece of literal text that selects this template: its longest run without blanks, with one blank on a side where the literal
  /// has some there. A message that matches contains it, ASCII case and the kind of blank apart, however long its runs of blanks are.
  std::string_view keyword() const { return keyword_; }

  /// Matches anywhere in the message (at its start with ^). On success fields holds one view a field.
  /// A hostile message costs no more than reading it kReadings times; one that needs more does not match.
  bool match(std::string_view message, std::vector<std::string_view>& fields) const {
    std::size_t budget = kFreeBytes + kReadings * message.size();
    const bool fixed_start = begins_at_start();
    std::size_t start = 0;
    if (parts_.front().field())
      while (start < message.size() && blank(message[start])) ++start;
    for (; start <= message.size(); ++start) {
      if (!fixed_start) {
        start = find_literal(message, start, parts_.front(), budget);
        if (start == kNowhere) return false;
      }
      fields.clear();
      if (match_from(message, start, 0, fields, budget)) return true;
      if (fixed_start || budget == 0) return false;
    }
    return false;
  }

 private:
  struct Part {
    std::optional<FieldType> type;  ///< none: a literal
    std::string literal;
    bool kept = false;
    bool field() const { return type.has_value(); }
  };
  static constexpr std::size_t kNowhere = std::string_view::npos;
  static constexpr std::size_t kFreeBytes = 1024;
  static constexpr std::size_t kReadings = 8;
  static constexpr auto kIsHex = [] {
    std::array<bool, 256> out{};
    for (const char c : std::string_view("0123456789abcdefABCDEF")) out[static_cast<unsigned char>(c)] = true;
    return out;
  }();

  static bool blank(char c) { return c == ' ' || c == '\t'; }
  static char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
  static bool digit(char c) { return c >= '0' && c <= '9'; }
  static bool hex(char c) { return kIsHex[static_cast<unsigned char>(c)]; }
  static bool name_char(char c) { return digit(c) || (lower(c) >= 'a' && lower(c) <= 'z') || c == '_'; }

  void parse(std::string_view pattern) {
    const auto fail = [&](const char* what) { throw std::invalid_argument("template \"" + std::string(pattern) + "\": " + what); };
    std::string_view rest = pattern;
    if (rest.starts_with("^")) anchored_start_ = true, rest.remove_prefix(1);
    if (rest.starts_with("~")) any_case_ = true, rest.remove_prefix(1);
    if (rest.ends_with("$")) anchored_end_ = true, rest.remove_suffix(1);
    std::string literal;
    const auto flush = [&] {
      if (!literal.empty()) parts_.push_back({std::nullopt, literal, false});
      literal.clear();
    };
    for (std::size_t i = 0; i < rest.size(); ++i) {
      if (rest[i] == '{' && i + 1 < rest.size() && rest[i + 1] == '{') literal += '{', ++i;
      else if (rest[i] == '}' && i + 1 < rest.size() && rest[i + 1] == '}') literal += '}', ++i;
      else if (rest[i] == '}') fail("a brace that closes nothing is written }}");
      else if (rest[i] == '{') {
        const auto end = rest.find('}', i);
        if (end == kNowhere || end < i + 4 || rest[end - 2] != ':') fail("a field is written {name:type}");
        flush();
        const std::string_view name = rest.substr(i + 1, end - 2 - i - 1);
        if (!std::all_of(name.begin(), name.end(), name_char)) fail("a field's name has letters, digits and _ only");
        if (std::find(fields_.begin(), fields_.end(), name) != fields_.end()) fail("two fields have the same name");
        if (!parts_.empty() && parts_.back().field()) fail("two fields need a literal between them");
        if (std::string_view("dxifwks").find(rest[end - 1]) == kNowhere) fail("a field's type is one of d x i f w k s");
        const auto type = static_cast<FieldType>(rest[end - 1]);
        const bool kept = !name.starts_with('_');
        parts_.push_back({type, {}, kept});
        if (kept) {
          types_.push_back(type);
          fields_.emplace_back(name);
        }
        i = end;
      } else if (!blank(rest[i])) literal += rest[i];
      else if (!literal.ends_with(' ')) literal += ' ';
    }
    flush();
    choose_keyword();
    if (keyword_.empty()) fail("it has no literal text");
  }

  static std::bitset<256> any_byte() { return std::bitset<256>().set(); }
  template <class Holds>
  static std::bitset<256> bytes_where(Holds holds) {
    std::bitset<256> out;
    for (int byte = 0; byte < 256; ++byte) out[static_cast<std::size_t>(byte)] = holds(static_cast<char>(byte));
    return out;
  }
  std::bitset<256> bytes_of(char literal) const {
    return bytes_where([&](char c) { return same(c, literal); });
  }
  /// The bytes that a field may begin with.
  static std::bitset<256> bytes_of(FieldType type) {
    switch (type) {
      case FieldType::kDigits: return bytes_where([](char c) { return digit(c) || c == '-'; });
      case FieldType::kDecimal: return bytes_where([](char c) { return digit(c) || c == '-' || c == '+' || c == '.'; });
      case FieldType::kHex:
      case FieldType::kNumber: return bytes_where(hex);
      default: return any_byte();
    }
  }

  void choose_keyword() {
    for (const auto& part : parts_) {
      const std::string_view literal = part.literal;
      for (std::size_t begin = 0; begin < literal.size();) {
        const std::size_t end = std::min(literal.find(' ', begin), literal.size());
        const std::size_t from = begin - (begin > 0);  // the literal has single blanks only
        const std::size_t to = std::min(end + 1, literal.size());
        if (end > begin && to - from > keyword_.size()) keyword_ = literal.substr(from, to - from);
        begin = end + 1;
      }
    }
  }

  /// text.substr(begin, end - begin) for a begin that is known to be inside.
  static std::string_view piece(std::string_view text, std::size_t begin, std::size_t end) { return {text.data() + begin, end - begin}; }

  /// memcmp without the call: literals are short.
  static bool equal_bytes(const char* a, const char* b, std::size_t n) {
    const auto differ = [&]<class Word>(Word, std::size_t at) {
      Word x, y;
      std::memcpy(&x, a + at, sizeof x);
      std::memcpy(&y, b + at, sizeof y);
      return x != y;
    };
    if (n >= 8) {
      for (std::size_t at = 0; at + 8 < n; at += 8)
        if (differ(std::uint64_t{}, at)) return false;
      return !differ(std::uint64_t{}, n - 8);
    }
    if (n >= 4) return !differ(std::uint32_t{}, 0) && !differ(std::uint32_t{}, n - 4);
    for (std::size_t at = 0; at < n; ++at)
      if (a[at] != b[at]) return false;
    return true;
  }

  bool same(char a, char b) const { return any_case_ ? lower(a) == lower(b) : a == b; }

  /// Where literal ends if it stands at `at`; kNowhere otherwise.
  std::size_t end_of_literal(std::string_view text, std::size_t at, const std::string& literal) const {
    if (!any_case_ && literal.size() <= text.size() - at && equal_bytes(text.data() + at, literal.data(), literal.size())) {
      at += literal.size();
      if (literal.back() == ' ')
        while (at < text.size() && blank(text[at])) ++at;
      return at;
    }
    for (const char c : literal) {
      if (at >= text.size()) return kNowhere;
      if (c != ' ') {
        if (!same(text[at], c)) return kNowhere;
        ++at;
      } else {
        if (!blank(text[at])) return kNowhere;
        do ++at;
        while (at < text.size() && blank(text[at]));
      }
    }
    return at;
  }

  /// First place of part's literal from `from` on. Bytes passed over are taken off budget; kNowhere when it is spent.
  std::size_t find_literal(std::string_view text, std::size_t from, const Part& part, std::size_t& budget) const {
    const char first = part.literal.front();
    std::size_t at = from;
    while (at < text.size()) {
      if (!any_case_ && first != ' ') {
        const void* found = std::memchr(text.data() + at, first, text.size() - at);
        if (found == nullptr) return kNowhere;
        at = static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
      } else if (first == ' ' ? !blank(text[at]) || (at > 0 && blank(text[at - 1])) : !same(text[at], first)) {
        // a run of blanks is one blank: from its second on the literal would end where it ended from the first
        ++at;
        continue;
      }
      const std::size_t cost = at - from + 1;
      if (cost >= budget) break;
      if (end_of_literal(text, at, part.literal) != kNowhere) {
        budget -= cost;
        return at;
      }
      ++at;
    }
    budget -= std::min(budget, at - from);
    return kNowhere;
  }

  /// Whether the parts from index on take the text from `at` on. On failure fields are as they were.
  bool match_from(std::string_view text, std::size_t at, std::size_t index, std::vector<std::string_view>& fields, std::size_t& budget) const {
    const std::size_t fields_before = fields.size();
    for (; index < parts_.size(); ++index) {
      if (budget == 0) break;
      --budget;
      const Part& part = parts_[index];
      std::size_t end = at;
      if (!part.field()) end = end_of_literal(text, at, part.literal);
      else switch (*part.type) {
        case FieldType::kDigits: end = end_of_digits(text, at); break;
        case FieldType::kHex:
        case FieldType::kNumber: end = end_of_hex(text, at); break;
        case FieldType::kDecimal: end = end_of_decimal(text, at); break;
        case FieldType::kWord:
        case FieldType::kName:
        case FieldType::kText:
          if (match_lazy(text, at, index, fields, budget)) return true;
          break;
      }
      if (end == at || end == kNowhere) break;
      if (part.kept) fields.push_back(piece(text, at, end));
      at = end;
    }
    if (index == parts_.size()) {
      if (!anchored_end_) return true;
      while (at < text.size() && blank(text[at])) ++at;
      if (at == text.size()) return true;
    }
    fields.resize(fields_before);
    return false;
  }

  // Each returns `at` where no such number begins.
  static std::size_t end_of_digits(std::string_view text, std::size_t at) {
    const std::size_t first = at + (at < text.size() && text[at] == '-');
    std::size_t end = first;
    while (end < text.size() && digit(text[end])) ++end;
    return end == first ? at : end;
  }
  static std::size_t end_of_hex(std::string_view text, std::size_t at) {
    std::size_t end = at;
    if (end + 2 < text.size() && text[end] == '0' && lower(text[end + 1]) == 'x' && hex(text[end + 2])) end += 2;
    while (end < text.size() && hex(text[end])) ++end;
    return end;
  }
  static std::size_t end_of_decimal(std::string_view text, std::size_t at) {
    std::size_t end = at;
    const auto skip_digits = [&] {
      const std::size_t first = end;
      while (end < text.size() && digit(text[end])) ++end;
      return end > first;
    };
    if (end < text.size() && (text[end] == '-' || text[end] == '+')) ++end;
    bool any = skip_digits();
    if (end + 1 < text.size() && text[end] == '.' && digit(text[end + 1])) ++end, any = skip_digits();
    if (!any) return at;
    const std::size_t mantissa_end = end;
    if (end < text.size() && lower(text[end]) == 'e') {
      ++end;
      if (end < text.size() && (text[end] == '-' || text[end] == '+')) ++end;
      if (!skip_digits()) return mantissa_end;
    }
    return end;
  }

  bool match_lazy(std::string_view text, std::size_t at, std::size_t index, std::vector<std::string_view>& fields, std::size_t& budget) const {
    const bool word = parts_[index].type != FieldType::kText;
    std::size_t word_end = text.size();
    if (word) {
      for (word_end = at; word_end < text.size() && !blank(text[word_end]);) ++word_end;
      budget -= std::min(budget, word_end - at);
      if (word_end == at) return false;
    }
    const auto rest_fits = [&](std::size_t end) {
      const std::size_t fields_before = fields.size();
      if (parts_[index].kept) fields.push_back(piece(text, at, end));
      if (match_from(text, end, index + 1, fields, budget)) return true;
      fields.resize(fields_before);
      return false;
    };
    if (index + 1 == parts_.size()) return rest_fits(word_end);
    const Part& next = parts_[index + 1];
    // A word's literal may begin inside the word or with the blank behind it.
    const std::string_view reach = word ? text.substr(0, std::min(text.size(), word_end + 1)) : text;
    for (std::size_t end = at + (word ? 1 : 0);; ++end) {
      end = word ? find_in_word(text, reach, end, next) : find_literal(text, end, next, budget);
      if (end == kNowhere) {
        if (!word) budget = 0;  // other ways to get here begin further right, so that none finds it
        return false;
      }
      if (rest_fits(end)) return true;
      if (budget == 0) return false;
    }
  }

  /// First place in reach, from `from` on, where part's literal stands in text.
  std::size_t find_in_word(std::string_view text, std::string_view reach, std::size_t from, const Part& part) const {
    const char first = part.literal.front();
    if (first == ' ') from = std::max(from, reach.size() - 1);  // only what ends the word is a blank
    for (; from < reach.size(); ++from)
      if ((any_case_ || first == ' ' || text[from] == first) && end_of_literal(text, from, part.literal) != kNowhere) return from;
    return kNowhere;
  }

  std::vector<Part> parts_;
  std::vector<std::string> fields_;
  std::vector<FieldType> types_;
  std::string keyword_;
  bool anchored_start_ = false;
  bool anchored_end_ = false;
  bool any_case_ = false;
};

}  // namespace busbw::scan
