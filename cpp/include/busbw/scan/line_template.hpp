/// The shape of one log message: literals and named fields, written as text, matched without regular expressions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace busbw::scan {

/// `Channel {channel:d}/{index:d} : {src:d}[{src_device:x}] -> ...`
///
/// Fields: `d` digits with an optional minus, `x` hexadecimal digits with or without 0x, `f` a decimal number,
/// `w` a run without blanks that ends before the next literal, `s` anything before the next literal (the rest, if last).
/// One blank in a literal stands for one or more blanks. `^` in front: at the start of the message; `$` behind: at its
/// end. `~` in front (after `^`): ASCII case is ignored. `{{` and `}}` are braces.
/// A pattern that begins with a field begins at the start of the message, with or without ^.
/// Fields are not tried shorter than they can be, but for `w` and `s`, which end at the first literal after which the rest fits.
class LineTemplate {
 public:
  /// Throws std::invalid_argument with the pattern and what is wrong with it.
  explicit LineTemplate(std::string_view pattern) { parse(pattern); }

  const std::vector<std::string>& fields() const { return fields_; }

  /// The piece of literal text that selects this template: its longest run without blanks, with one blank on a side where the literal
  /// has some there. A message that matches contains it, ASCII case and the kind of blank apart, however long its runs of blanks are.
  std::string_view keyword() const { return keyword_; }

  /// Matches anywhere in the message (at its start with ^). On success fields holds one view a field.
  /// A hostile message costs no more than reading it kReadings times; one that needs more does not match.
  bool match(std::string_view message, std::vector<std::string_view>& fields) const {
    std::size_t budget = kFreeBytes + kReadings * message.size();
    const bool fixed_start = anchored_start_ || parts_.front().type != Type::kLiteral;
    for (std::size_t start = 0; start <= message.size(); ++start) {
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
  enum class Type : std::uint8_t { kLiteral, kDigits, kHex, kDecimal, kWord, kText };
  struct Part {
    Type type;
    std::string literal;
  };
  static constexpr std::size_t kNowhere = std::string_view::npos;
  static constexpr std::size_t kFreeBytes = 1024;
  static constexpr std::size_t kReadings = 8;

  static bool blank(char c) { return c == ' ' || c == '\t'; }
  static char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
  static bool digit(char c) { return c >= '0' && c <= '9'; }
  static bool hex(char c) { return digit(c) || (lower(c) >= 'a' && lower(c) <= 'f'); }
  static bool name_char(char c) { return digit(c) || (lower(c) >= 'a' && lower(c) <= 'z') || c == '_'; }

  void parse(std::string_view pattern) {
    const auto fail = [&](const char* what) { throw std::invalid_argument("template \"" + std::string(pattern) + "\": " + what); };
    std::string_view rest = pattern;
    if (rest.starts_with("^")) anchored_start_ = true, rest.remove_prefix(1);
    if (rest.starts_with("~")) any_case_ = true, rest.remove_prefix(1);
    if (rest.ends_with("$")) anchored_end_ = true, rest.remove_suffix(1);
    std::string literal;
    const auto flush = [&] {
      if (!literal.empty()) parts_.push_back({Type::kLiteral, literal});
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
        if (!parts_.empty() && parts_.back().type != Type::kLiteral) fail("two fields need a literal between them");
        parts_.push_back({type_of(rest[end - 1]), {}});
        if (parts_.back().type == Type::kLiteral) fail("a field's type is one of d x f w s");
        fields_.emplace_back(name);
        i = end;
      } else if (!blank(rest[i])) literal += rest[i];
      else if (!literal.ends_with(' ')) literal += ' ';
    }
    flush();
    choose_keyword();
    if (keyword_.empty()) fail("it has no literal text");
  }

  /// kLiteral for a letter that is no type.
  static Type type_of(char letter) {
    switch (letter) {
      case 'd': return Type::kDigits;
      case 'x': return Type::kHex;
      case 'f': return Type::kDecimal;
      case 'w': return Type::kWord;
      case 's': return Type::kText;
      default: return Type::kLiteral;
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
      } else if (first == ' ' ? !blank(text[at]) : !same(text[at], first)) {
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
      switch (part.type) {
        case Type::kLiteral: end = end_of_literal(text, at, part.literal); break;
        case Type::kDigits: end = end_of_digits(text, at); break;
        case Type::kHex: end = end_of_hex(text, at); break;
        case Type::kDecimal: end = end_of_decimal(text, at); break;
        case Type::kWord:
        case Type::kText:
          if (match_lazy(text, at, index, fields, budget)) return true;
          break;
      }
      if (end == at || end == kNowhere) break;
      if (part.type != Type::kLiteral) fields.push_back(text.substr(at, end - at));
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
    const bool word = parts_[index].type == Type::kWord;
    std::size_t word_end = text.size();
    if (word) {
      for (word_end = at; word_end < text.size() && !blank(text[word_end]);) ++word_end;
      budget -= std::min(budget, word_end - at);
      if (word_end == at) return false;
    }
    if (index + 1 == parts_.size()) {
      fields.push_back(text.substr(at, word_end - at));
      if (match_from(text, word_end, index + 1, fields, budget)) return true;
      fields.pop_back();
      return false;
    }
    const Part& next = parts_[index + 1];
    // A word's literal may begin inside the word or with the blank behind it.
    const std::string_view reach = word ? text.substr(0, std::min(text.size(), word_end + 1)) : text;
    for (std::size_t end = at + (word ? 1 : 0);; ++end) {
      end = word ? find_in_word(text, reach, end, next) : find_literal(text, end, next, budget);
      if (end == kNowhere) {
        if (!word) budget = 0;  // other ways to get here begin further right, so that none finds it
        return false;
      }
      fields.push_back(text.substr(at, end - at));
      if (match_from(text, end, index + 1, fields, budget)) return true;
      fields.pop_back();
      if (budget == 0) return false;
    }
  }

  /// First place in reach, from `from` on, where part's literal stands in text.
  std::size_t find_in_word(std::string_view text, std::string_view reach, std::size_t from, const Part& part) const {
    for (; from < reach.size(); ++from)
      if (end_of_literal(text, from, part.literal) != kNowhere) return from;
    return kNowhere;
  }

  std::vector<Part> parts_;
  std::vector<std::string> fields_;
  std::string keyword_;
  bool anchored_start_ = false;
  bool anchored_end_ = false;
  bool any_case_ = false;
};

}  // namespace busbw::scan
