/// The least that a test needs: a check that says what differed, and an exit code.
#pragma once

#include <iostream>

namespace busbw::testing {

inline int failures = 0;

template <class Got, class Want>
void check_equal(const Got& got, const Want& want, const char* what, const char* file, int line) {
  if (got == want) return;
  ++failures;
  std::cerr << file << ':' << line << ": " << what << " is [" << got << "], not [" << want << "]\n";
}

inline void check_true(bool holds, const char* what, const char* file, int line) {
  if (holds) return;
  ++failures;
  std::cerr << file << ':' << line << ": does not hold: " << what << '\n';
}

}  // namespace busbw::testing

#define CHECK(condition) ::busbw::testing::check_true((condition), #condition, __FILE__, __LINE__)
#define CHECK_EQUAL(got, want) ::busbw::testing::check_equal((got), (want), #got, __FILE__, __LINE__)
#define CHECK_THROWS(exception, ...)                                                           \
  do {                                                                                         \
    bool thrown = false;                                                                       \
    try {                                                                                      \
      __VA_ARGS__;                                                                             \
    } catch (const exception&) {                                                               \
      thrown = true;                                                                           \
    }                                                                                          \
    ::busbw::testing::check_true(thrown, #__VA_ARGS__ " throws " #exception, __FILE__, __LINE__); \
  } while (false)
