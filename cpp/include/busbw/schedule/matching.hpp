/// Greedy matching of links and chunks in time: who sends what to whom, and when, on a graph of point-to-point links.
///
/// A rank wants chunks that other ranks have. Whenever a link is free it carries a message, one or more chunks that its source has and
/// its destination neither has nor is being sent; it is busy for alpha + bytes / bandwidth, and the chunks are there at the end.
/// Chunks spread by copying, so one transfer is one copy (all_gather, broadcast; in reversed time reduce_scatter and reduce).
///
/// Which chunk: the one that fewest neighbours of the receiver have, then the one that fewest ranks have, then by lot. What is new to the
/// neighbours keeps their links busy later, and what is rare takes longest to be everywhere.
/// A cluster is a set of ranks that others reach through narrow links only; a chunk enters it once and spreads inside. Without that, rails into
/// a node carry chunks that its GPUs would have got from each other.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace busbw::schedule {

/// Directed links, column by column; times in picoseconds.
struct MatchingLinks {
  std::vector<std::int32_t> src;
  std::vector<std::int32_t> dst;
  std::vector<std::int64_t> alpha_ps;  ///< start-up of a message; the link is busy with it
  std::vector<std::int64_t> chunk_ps;  ///< time of one chunk without start-up
};

/// What is to be carried: every chunk from its source to every rank.
struct MatchingDemand {
  std::int32_t ranks = 0;
  std::int32_t chunks = 0;
  std::vector<std::int32_t> source;  ///< (chunks) the rank that has it at the beginning
};

struct MatchingOptions {
  std::uint64_t seed = 0;
  std::int32_t most_chunks = 1;       ///< chunks a message may carry
  std::int32_t rounds_ahead = 16;     ///< a message carries at most 1/rounds_ahead of what its receiver lacks a link; 0: no such limit
  std::vector<std::vector<std::int32_t>> clusters;  ///< ranks of each; laminar and strongly connected inside
};

/// One chunk on one link. Rows with the same link and begin are one message.
struct Transfers {
  std::vector<std::int32_t> link;
  std::vector<std::int32_t> chunk;
  std::vector<std::int64_t> begin_ps;
  std::vector<std::int64_t> end_ps;
  std::int64_t makespan_ps = 0;
};

namespace detail {

/// splitmix64 (Steele, Lea, Flood 2014): the same numbers on every machine.
class Lots {
 public:
  explicit Lots(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>((next() >> 32) * limit >> 32); }

 private:
  std::uint64_t state_;
};

inline void check_links(const MatchingLinks& links, std::int32_t ranks) {
  const std::size_t count = links.src.size();
  if (links.dst.size() != count || links.alpha_ps.size() != count || links.chunk_ps.size() != count)
    throw std::invalid_argument("columns of links differ in length");
  if (ranks < 1) throw std::invalid_argument("there must be a rank");
  const auto is_rank = [ranks](std::int32_t rank) { return rank >= 0 && rank < ranks; };
  for (std::size_t i = 0; i < count; ++i) {
    if (!is_rank(links.src[i]) || !is_rank(links.dst[i]) || links.src[i] == links.dst[i])
      throw std::invalid_argument("link " + std::to_string(i) + " joins no two ranks");
    if (links.alpha_ps[i] < 0 || links.chunk_ps[i] < 0 || links.alpha_ps[i] + links.chunk_ps[i] <= 0)
      throw std::invalid_argument("link " + std::to_string(i) + " takes no time");
  }
}

inline std::size_t words_for(const MatchingDemand& demand) {
  return std::max<std::size_t>(1, (static_cast<std::size_t>(std::max(demand.chunks, 0)) + 63) / 64);
}

}  // namespace detail

/// kWords: words of a set of chunks, known when compiled so that the inner loops stay in registers; 0: any.
template <std::size_t kWords>
class Matching {
 public:
  using Word = std::uint64_t;

  Matching(MatchingLinks links, MatchingDemand demand, MatchingOptions options)
      : links_(std::move(links)), demand_(std::move(demand)), options_(std::move(options)), lots_(options_.seed) {
    check();
    prepare();
  }

  /// Carries everything to everyone. Throws std::runtime_error if some rank can't be reached.
  Transfers run() {
    std::int64_t now = 0;
    for (std::size_t v = 0; v < ranks(); ++v) touch(v);
    match(now);
    while (!ends_.empty()) {
      const auto first = ends_.begin();
      now = first->first;
      const std::vector<std::int32_t> ended = std::move(first->second);
      ends_.erase(first);
      for (const auto link : ended) arrive(static_cast<std::size_t>(link));
      match(now);
    }
    for (std::size_t v = 0; v < ranks(); ++v)
      if (missing_[v] != 0) throw std::runtime_error("rank " + std::to_string(v) + " can't be reached from every chunk's source");
    out_.makespan_ps = now;
    return std::move(out_);
  }

 private:
  static constexpr std::size_t kWordBits = 64;

  std::size_t words() const {
    if constexpr (kWords != 0)
      return kWords;
    else
      return words_;
  }
  std::size_t ranks() const { return static_cast<std::size_t>(demand_.ranks); }
  std::size_t chunks() const { return static_cast<std::size_t>(demand_.chunks); }
  Word* row(std::vector<Word>& table, std::size_t index) { return table.data() + index * words(); }

  void check() const {
    detail::check_links(links_, demand_.ranks);
    if (demand_.chunks < 0 || demand_.source.size() != chunks()) throw std::invalid_argument("source must have one rank a chunk");
    const auto is_rank = [this](std::int32_t rank) { return rank >= 0 && rank < demand_.ranks; };
    for (const auto rank : demand_.source)
      if (!is_rank(rank)) throw std::invalid_argument("the source of a chunk is no rank");
    for (const auto& cluster : options_.clusters)
      for (const auto rank : cluster)
        if (!is_rank(rank)) throw std::invalid_argument("a cluster has a member that is no rank");
    if (options_.most_chunks < 1 || options_.rounds_ahead < 0) throw std::invalid_argument("most_chunks is at least 1, rounds_ahead 0");
  }

  void prepare() {
    words_ = detail::words_for(demand_);
    if (kWords != 0 && kWords < words_) throw std::invalid_argument("compiled for fewer chunks");
    have_.assign(ranks() * words(), 0);
    coming_.assign(ranks() * words(), 0);
    missing_.assign(ranks(), demand_.chunks);
    in_.resize(ranks());
    out_of_.resize(ranks());
    for (std::size_t i = 0; i < links_.src.size(); ++i) {
      in_[static_cast<std::size_t>(links_.dst[i])].push_back(static_cast<std::int32_t>(i));
      out_of_[static_cast<std::size_t>(links_.src[i])].push_back(static_cast<std::int32_t>(i));
    }
    is_free_.assign(links_.src.size(), 1);
    carried_.resize(links_.src.size());
    is_touched_.assign(ranks(), 0);
    scratch_.assign(words() * 3, 0);
    taken_.assign(words(), 0);
    tried_.assign(words(), 0);
    taken_by_.assign(chunks(), -1);

    enters_.resize(links_.src.size());
    member_of_.resize(ranks());
    got_.assign(options_.clusters.size() * words(), 0);
    missing_inside_.assign(options_.clusters.size(), demand_.chunks);
    links_into_.assign(options_.clusters.size(), 0);
    ending_links_.resize(options_.clusters.size());
    std::stable_sort(options_.clusters.begin(), options_.clusters.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
    for (std::size_t k = 0; k < options_.clusters.size(); ++k)
      for (const auto rank : options_.clusters[k]) member_of_[static_cast<std::size_t>(rank)].push_back(static_cast<std::int32_t>(k));
    for (std::size_t i = 0; i < links_.src.size(); ++i) {
      const auto& from = member_of_[static_cast<std::size_t>(links_.src[i])];
      for (const auto k : member_of_[static_cast<std::size_t>(links_.dst[i])])
        if (std::find(from.begin(), from.end(), k) == from.end()) {
          enters_[i].push_back(k);  // the widest first
          ++links_into_[static_cast<std::size_t>(k)];
        }
    }

    planes_ = 1;
    while ((std::size_t{1} << planes_) <= ranks()) ++planes_;
    holders_.assign(planes_ * words(), 0);
    std::size_t most_out = 1;
    for (const auto& some : out_of_) most_out = std::max(most_out, std::min(some.size(), kMostNear));
    near_planes_ = 1;
    while ((std::size_t{1} << near_planes_) <= most_out) ++near_planes_;
    near_.assign(near_planes_ * words(), 0);

    for (std::size_t c = 0; c < chunks(); ++c) {
      const auto v = static_cast<std::size_t>(demand_.source[c]);
      have_[v * words() + c / kWordBits] |= Word{1} << (c % kWordBits);
      promise(v, c);
      --missing_[v];
    }
    const std::size_t total = (ranks() - 1) * chunks();
    out_.link.reserve(total);
    out_.chunk.reserve(total);
    out_.begin_ps.reserve(total);
    out_.end_ps.reserve(total);
  }

  /// Rank v has chunk c or is being sent it.
  void promise(std::size_t v, std::size_t c) {
    const std::size_t word = c / kWordBits;
    const Word bit = Word{1} << (c % kWordBits);
    coming_[v * words() + word] |= bit;
    for (const auto k : member_of_[v]) {
      Word& got = got_[static_cast<std::size_t>(k) * words() + word];
      missing_inside_[static_cast<std::size_t>(k)] -= (got & bit) == 0 ? 1 : 0;
      got |= bit;
    }
    for (std::size_t p = 0; p < planes_; ++p) {  // the count of holders, one bit a plane, plus one
      Word& plane = holders_[p * words() + word];
      plane ^= bit;
      if ((plane & bit) == 0) continue;  // carried
      planes_used_ = std::max(planes_used_, p + 1);
      break;
    }
  }

  void touch(std::size_t v) {
    if (is_touched_[v] != 0 || missing_[v] == 0) return;
    is_touched_[v] = 1;
    touched_.push_back(static_cast<std::int32_t>(v));
  }

  void arrive(std::size_t link) {
    const auto v = static_cast<std::size_t>(links_.dst[link]);
    for (const auto c : carried_[link]) have_[v * words() + static_cast<std::size_t>(c) / kWordBits] |= Word{1} << (c % 64);
    is_free_[link] = 1;
    touch(v);
    for (const auto next : out_of_[v])
      if (is_free_[static_cast<std::size_t>(next)] != 0) touch(static_cast<std::size_t>(links_.dst[static_cast<std::size_t>(next)]));
  }

  /// Gives every free link into the touched ranks something to carry, if there is something.
  void match(std::int64_t now) {
    for (std::size_t i = touched_.size(); i > 1; --i) std::swap(touched_[i - 1], touched_[lots_.below(i)]);
    for (const auto rank : touched_) {
      const auto v = static_cast<std::size_t>(rank);
      is_touched_[v] = 0;
      serve(v, now);
    }
    touched_.clear();
    for (const auto k : ending_) {
      auto& group = ending_links_[static_cast<std::size_t>(k)];
      serve_exactly(group, now);
      group.clear();
    }
    ending_.clear();
  }

  /// Chunks that the link could carry now, into `into`; whether there are any.
  bool candidates(std::size_t link, Word* into) {
    const Word* from = row(have_, static_cast<std::size_t>(links_.src[link]));
    const Word* to = row(coming_, static_cast<std::size_t>(links_.dst[link]));
    Word any = 0;
    for (std::size_t i = 0; i < words(); ++i) any |= into[i] = from[i] & ~to[i];
    if (any == 0) return false;
    for (const auto k : enters_[link]) {
      const Word* got = row(got_, static_cast<std::size_t>(k));
      any = 0;
      for (std::size_t i = 0; i < words(); ++i) any |= into[i] &= ~got[i];
    }
    return any != 0;
  }

  void serve(std::size_t v, std::int64_t now) {
    free_in_.clear();
    for (const auto link : in_[v])
      if (is_free_[static_cast<std::size_t>(link)] != 0 && !waits_for_cluster(static_cast<std::size_t>(link))) free_in_.push_back(link);
    if (free_in_.empty()) return;
    for (std::size_t i = free_in_.size(); i > 1; --i) std::swap(free_in_[i - 1], free_in_[lots_.below(i)]);
    if (length_of_message(v) == 1 && static_cast<std::size_t>(missing_[v]) <= kEndgameRounds * in_[v].size()) {
      serve_exactly(free_in_, now);
      return;
    }
    count_near(v);
    Word* found = scratch_.data();
    for (const auto link : free_in_) {
      const auto e = static_cast<std::size_t>(link);
      if (!candidates(e, found)) continue;
      send(e, found, now);
    }
  }

  /// Near the end of what enters a cluster all links into it are matched together, after those that stay inside.
  bool waits_for_cluster(std::size_t e) {
    if (enters_[e].empty()) return false;
    const std::int32_t outermost = enters_[e].front();
    const auto k = static_cast<std::size_t>(outermost);
    if (static_cast<std::size_t>(missing_inside_[k]) > kEndgameRounds * links_into_[k]) return false;
    if (length_of_message(static_cast<std::size_t>(links_.dst[e])) != 1) return false;
    if (ending_links_[k].empty()) ending_.push_back(outermost);
    ending_links_[k].push_back(static_cast<std::int32_t>(e));
    return true;
  }

  /// Chunks that a message to v may have now: few near the end, when they would come late.
  std::int32_t length_of_message(std::size_t v) const {
    if (options_.rounds_ahead == 0) return options_.most_chunks;
    return std::clamp(missing_[v] / static_cast<std::int32_t>(in_[v].size()) / options_.rounds_ahead, 1, options_.most_chunks);
  }

  /// Sends the best candidate, and more of them if the receiver still lacks many.
  void send(std::size_t e, Word* found, std::int64_t now) {
    const auto v = static_cast<std::size_t>(links_.dst[e]);
    std::int32_t most = length_of_message(v);
    auto& carried = carried_[e];
    carried.clear();
    while (most-- > 0) {
      const std::size_t c = best(found);
      found[c / kWordBits] &= ~(Word{1} << (c % kWordBits));
      carried.push_back(static_cast<std::int32_t>(c));
      promise(v, c);
      --missing_[v];
      Word any = 0;
      for (std::size_t i = 0; i < words(); ++i) any |= found[i];
      if (any == 0) break;
    }
    record(e, now);
  }

  void record(std::size_t e, std::int64_t now) {
    const auto& carried = carried_[e];
    const std::int64_t end = now + links_.alpha_ps[e] + links_.chunk_ps[e] * static_cast<std::int64_t>(carried.size());
    for (const auto c : carried) {
      out_.link.push_back(static_cast<std::int32_t>(e));
      out_.chunk.push_back(c);
      out_.begin_ps.push_back(now);
      out_.end_ps.push_back(end);
    }
    is_free_[e] = 0;
    ends_[end].push_back(static_cast<std::int32_t>(e));
  }

  /// Near the end links compete for the last chunks: as many of the links as possible get one each, by augmenting paths where choices collide.
  void serve_exactly(const std::vector<std::int32_t>& links, std::int64_t now) {
    const std::size_t count = links.size();
    Word* found = scratch_.data();
    std::fill(taken_.begin(), taken_.end(), 0);
    takes_.assign(count, -1);
    colliding_.clear();
    std::int32_t counted = -1;
    for (std::size_t i = 0; i < count; ++i) {
      const auto e = static_cast<std::size_t>(links[i]);
      if (!candidates(e, found)) continue;
      Word any = 0;
      for (std::size_t w = 0; w < words(); ++w) any |= found[w] &= ~taken_[w];
      if (any == 0) {
        colliding_.push_back(static_cast<std::int32_t>(i));
        continue;
      }
      if (counted != links_.dst[e]) count_near(static_cast<std::size_t>(links_.dst[e]));
      counted = links_.dst[e];
      take(i, best(found));
    }
    for (const auto i : colliding_) {
      std::fill(tried_.begin(), tried_.end(), 0);
      augment(links, static_cast<std::size_t>(i));
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (takes_[i] < 0) continue;
      const auto e = static_cast<std::size_t>(links[i]);
      carried_[e].assign(1, takes_[i]);
      promise(static_cast<std::size_t>(links_.dst[e]), static_cast<std::size_t>(takes_[i]));
      --missing_[static_cast<std::size_t>(links_.dst[e])];
      record(e, now);
    }
  }

  void take(std::size_t i, std::size_t c) {
    takes_[i] = static_cast<std::int32_t>(c);
    taken_by_[c] = static_cast<std::int32_t>(i);
    taken_[c / kWordBits] |= Word{1} << (c % kWordBits);
  }

  /// Finds a chunk for link i, if need be by giving others different ones (Kuhn's algorithm).
  bool augment(const std::vector<std::int32_t>& links, std::size_t i) {
    const auto e = static_cast<std::size_t>(links[i]);
    for (std::size_t w = 0; w < words(); ++w) {
      const Word open = candidates_word(e, w) & ~taken_[w];
      if (open == 0) continue;
      take(i, w * kWordBits + static_cast<std::size_t>(std::countr_zero(open)));
      return true;
    }
    for (std::size_t w = 0; w < words(); ++w)
      for (;;) {
        const Word left = candidates_word(e, w) & ~tried_[w];
        if (left == 0) break;
        const auto bit = static_cast<std::size_t>(std::countr_zero(left));
        tried_[w] |= Word{1} << bit;
        const std::size_t c = w * kWordBits + bit;
        if (!augment(links, static_cast<std::size_t>(taken_by_[c]))) continue;
        take(i, c);
        return true;
      }
    return false;
  }

  Word candidates_word(std::size_t e, std::size_t w) {
    Word found = row(have_, static_cast<std::size_t>(links_.src[e]))[w] & ~row(coming_, static_cast<std::size_t>(links_.dst[e]))[w];
    for (const auto k : enters_[e]) found &= ~row(got_, static_cast<std::size_t>(k))[w];
    return found;
  }

  /// How many ranks that v sends to have each chunk, one bit a plane. With many of them the first speak for all.
  void count_near(std::size_t v) {
    std::fill(near_.begin(), near_.end(), 0);
    std::size_t used = 1;
    std::size_t counted = 0;
    for (const auto link : out_of_[v]) {
      if (counted == kMostNear) break;
      const Word* has = row(coming_, static_cast<std::size_t>(links_.dst[static_cast<std::size_t>(link)]));
      if ((std::size_t{1} << used) <= ++counted) ++used;
      for (std::size_t i = 0; i < words(); ++i) {
        Word carry = has[i];
        for (std::size_t p = 0; p < used; ++p) {
          Word& plane = near_[p * words() + i];
          const Word over = plane & carry;
          plane ^= carry;
          carry = over;
        }
      }
    }
    near_used_ = used;
  }

  /// Keeps the candidates whose count is lowest; left and spare change places where that saves a copy.
  void keep_lowest(Word*& left, Word*& spare, const std::vector<Word>& planes, std::size_t used) {
    for (std::size_t p = used; p-- > 0;) {
      const Word* plane = planes.data() + p * words();
      Word any = 0;
      for (std::size_t i = 0; i < words(); ++i) any |= spare[i] = left[i] & ~plane[i];
      if (any != 0) std::swap(left, spare);
    }
  }

  std::size_t best(const Word* found) {
    Word* left = scratch_.data() + words();
    Word* spare = left + words();
    std::copy(found, found + words(), left);
    keep_lowest(left, spare, near_, near_used_);
    keep_lowest(left, spare, holders_, planes_used_);
    const std::size_t start = lots_.below(chunks());
    std::size_t word = start / kWordBits;
    Word bits = left[word] & (~Word{0} << (start % kWordBits));
    while (bits == 0) {
      if (++word == words()) word = 0;
      bits = left[word];
    }
    return word * kWordBits + static_cast<std::size_t>(std::countr_zero(bits));
  }

  static constexpr std::size_t kMostNear = 16;      ///< a guess: more neighbours differ little from all ranks
  static constexpr std::size_t kEndgameRounds = 8;  ///< a guess: from where on links into a rank are matched exactly

  MatchingLinks links_;
  MatchingDemand demand_;
  MatchingOptions options_;
  detail::Lots lots_;
  std::size_t words_ = 0;
  std::size_t planes_ = 0;
  std::size_t planes_used_ = 0;
  std::size_t near_planes_ = 0;
  std::size_t near_used_ = 0;
  std::vector<Word> have_, coming_, got_, holders_, near_, scratch_, taken_, tried_;
  std::vector<std::int32_t> missing_, missing_inside_;
  std::vector<std::size_t> links_into_;
  std::vector<std::vector<std::int32_t>> in_, out_of_, enters_, member_of_, carried_, ending_links_;
  std::vector<std::uint8_t> is_free_, is_touched_;
  std::vector<std::int32_t> touched_, free_in_, takes_, taken_by_, colliding_, ending_;
  std::map<std::int64_t, std::vector<std::int32_t>> ends_;
  Transfers out_;
};

/// The greedy schedule. Throws std::invalid_argument for wrong columns, std::runtime_error if a rank can't be reached.
inline Transfers match_in_time(MatchingLinks links, MatchingDemand demand, MatchingOptions options) {
  const auto run = [&]<std::size_t kWords>() {
    return Matching<kWords>(std::move(links), std::move(demand), std::move(options)).run();
  };
  const std::size_t words = detail::words_for(demand);
  if (words <= 1) return run.operator()<1>();
  if (words <= 2) return run.operator()<2>();
  if (words <= 4) return run.operator()<4>();
  if (words <= 8) return run.operator()<8>();
  if (words <= 16) return run.operator()<16>();
  if (words <= 32) return run.operator()<32>();
  return run.operator()<0>();
}

}  // namespace busbw::schedule
