// The search finds what a naive search finds.
#include "busbw/scan/keyword_search.hpp"

#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "check.hpp"

using busbw::scan::KeywordSearch;

namespace {

std::string lower(std::string s) {
  for (auto& c : s)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return s;
}

std::set<std::size_t> found(const KeywordSearch& search, std::string_view text) {
  std::set<std::size_t> out;
  search.find(text, [&](std::uint32_t k) { out.insert(k); });
  return out;
}

/// Keywords of less than four bytes are always reported, the others where they occur.
std::set<std::size_t> expected(const std::vector<std::string>& keywords, const std::string& text) {
  std::set<std::size_t> out;
  for (std::size_t k = 0; k < keywords.size(); ++k)
    if (keywords[k].size() < 4 || lower(text).find(lower(keywords[k])) != std::string::npos) out.insert(k);
  return out;
}

void examples() {
  const std::vector<std::string_view> keywords{"Channel ", "channel", "nel 0", "->", "[nranks="};
  const KeywordSearch search(keywords);
  CHECK(found(search, "Channel 00") == (std::set<std::size_t>{0, 1, 2, 3}));
  CHECK(found(search, "CHANNEL[NRANKS=") == (std::set<std::size_t>{1, 3, 4}));
  CHECK(found(search, "") == std::set<std::size_t>{3});
  CHECK(found(search, "nel") == std::set<std::size_t>{3});
  // Bit 5 makes letters of both cases alike, and also these, which are not.
  CHECK(found(KeywordSearch({"a[b]"}), "A{B}").empty());
  CHECK(found(KeywordSearch({"a@bc"}), "a`bc").empty());
}

void an_empty_keyword_is_refused() { CHECK_THROWS(std::invalid_argument, KeywordSearch({"a", ""})); }

/// Few letters, so that keywords overlap, nest, repeat and share their grams.
void random_texts() {
  std::mt19937_64 random(1);
  const auto text = [&](std::size_t longest, std::string_view letters) {
    std::string out(random() % longest + 1, ' ');
    for (auto& c : out) c = letters[random() % letters.size()];
    return out;
  };
  for (int round = 0; round < 2000; ++round) {
    const std::string_view letters = round % 2 ? "abAB" : "aB -\xff\t[{";
    std::vector<std::string> keywords(random() % 40 + 1);
    for (auto& keyword : keywords) keyword = text(9, letters);
    const KeywordSearch search({keywords.begin(), keywords.end()});
    for (int i = 0; i < 10; ++i) {
      const std::string message = text(60, letters);
      CHECK(found(search, message) == expected(keywords, message));
    }
  }
}

}  // namespace

int main() {
  examples();
  an_empty_keyword_is_refused();
  random_texts();
  return busbw::testing::failures != 0;
}
