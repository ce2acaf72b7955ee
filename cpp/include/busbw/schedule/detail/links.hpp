/// Shape of a plan, its memory, and which connection meets which.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "busbw/schedule/findings.hpp"
#include "busbw/schedule/plan_rows.hpp"
#include "busbw/schedule/rank_sets.hpp"

namespace busbw::schedule::detail {

inline constexpr std::uint32_t kNone = ~std::uint32_t{0};

inline bool names_connection(Op op) { return op <= Op::kGroupReduceMulticast && op != Op::kCopy && op != Op::kPack && op != Op::kUnpack; }
inline bool is_loop(Op op) { return op == Op::kLoop || op == Op::kSlices; }

/// Whether rows point only into their tables; what does not is reported, and the plan cannot be run.
inline bool well_formed(const std::vector<RankRows>& ranks, Findings& findings) {
  bool well = true;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const RankRows& rank = ranks[r];
    const auto wrong = [&](std::size_t block, std::int64_t row) {
      well = false;
      Finding finding{.rule = Rule::kMalformed, .at = {static_cast<std::int32_t>(r), static_cast<std::int32_t>(block), static_cast<std::int32_t>(row), -1}, .other = {}};
      findings.add(finding);
    };
    if (rank.walks.empty()) wrong(0, -1);
    for (const auto& walk : rank.walks)
      if (walk.parts == 0 || walk.part >= walk.parts || walk.src_wrap < 0 || walk.dst_wrap < 0) wrong(0, -1);
    for (const auto& connection : rank.connections) {
      const bool is_switch = connection.kind == ConnectionKind::kSwitch;
      const std::size_t peers = is_switch ? rank.groups.size() : ranks.size();
      if (connection.kind > ConnectionKind::kSwitch || connection.protocol > 3 || connection.peer < 0 ||
          static_cast<std::size_t>(connection.peer) >= peers || (!is_switch && static_cast<std::size_t>(connection.peer) == r))
        wrong(0, -1);
    }
    for (const auto& group : rank.groups) {
      if (static_cast<int>(group.buffer) > 2 || group.ranks.empty()) wrong(0, -1);
      for (const auto member : group.ranks)
        if (member < 0 || static_cast<std::size_t>(member) >= ranks.size()) wrong(0, -1);
    }
    for (std::size_t b = 0; b < rank.blocks.size(); ++b) {
      const Block& block = rank.blocks[b];
      if (block.first < 0 || block.last < block.first || static_cast<std::size_t>(block.last) > rank.rows.size()) {
        wrong(b, -1);
        continue;
      }
      struct Open { std::int64_t end; bool slices; };
      std::vector<Open> open;
      for (std::int64_t i = block.first; i < block.last;) {
        while (!open.empty() && open.back().end == i) open.pop_back();
        const Row& row = rank.rows[static_cast<std::size_t>(i)];
        const std::int64_t end = open.empty() ? block.last : open.back().end;
        bool fits = row.op < Op::kOperand && i + 1 + row.more <= end && row.order <= Order::kRelease;
        if (fits && is_loop(row.op)) {
          std::size_t loops = 0;
          bool sliced = false;
          for (const auto& one : open) one.slices ? void(sliced = true) : void(++loops);
          fits = row.more == 0 && row.count >= 0 && row.dst >= 0 && i + 1 + row.dst <= end &&
                 (row.op == Op::kLoop ? loops < kMaxLoops : !sliced && row.count > 0);
          if (fits && row.dst > 0) open.push_back({i + 1 + row.dst, row.op == Op::kSlices});
        }
        for (std::int64_t k = i; fits && k <= i + row.more; ++k) {
          const Row& operand = rank.rows[static_cast<std::size_t>(k)];
          fits = (k == i || operand.op == Op::kOperand) && operand.walk < rank.walks.size() &&
                 (operand.src_buffer <= Buffer::kScratch || operand.src_buffer == Buffer::kNone) &&
                 (operand.dst_buffer <= Buffer::kScratch || operand.dst_buffer == Buffer::kNone) && operand.count >= 0;
        }
        if (!fits) {
          wrong(b, i - block.first);
          break;
        }
        i += 1 + row.more;
      }
    }
  }
  return well;
}

/// The memory of all ranks as one row of pieces. A chunk has parts * slices pieces; a scratch chunk parts * scratch_slices.
class Memory {
 public:
  Memory(const std::vector<RankRows>& ranks, const RunOptions& options) {
    per_chunk_ = {std::int64_t{options.parts} * options.slices, std::int64_t{options.parts} * options.slices,
                  std::int64_t{options.parts} * options.scratch_slices};
    std::int64_t at = 0;
    for (const auto& rank : ranks) {
      std::array<std::int64_t, 3> base{};
      base[0] = at + rank.alias[0] * per_chunk_[0];
      base[1] = at + rank.alias[1] * per_chunk_[1];
      at += rank.memory_chunks * per_chunk_[0];
      base[2] = at;
      scratch_.push_back(rank.chunks[2] * per_chunk_[2]);
      at += scratch_.back() * (options.double_scratch ? 2 : 1);
      base_.push_back(base);
      end_.push_back(at);
    }
    double_scratch_ = options.double_scratch;
    pieces_ = at;
  }
  std::int64_t pieces() const { return pieces_; }
  std::int64_t per_chunk(Buffer buffer) const { return per_chunk_[static_cast<std::size_t>(buffer)]; }
  std::int64_t position(std::size_t rank, Buffer buffer, std::int64_t chunk, std::uint32_t launch) const {
    const auto b = static_cast<std::size_t>(buffer);
    const std::int64_t half = b == 2 && double_scratch_ && launch % 2 == 1 ? scratch_[rank] : 0;
    return base_[rank][b] + half + chunk * per_chunk_[b];
  }
  std::size_t owner(std::int64_t piece) const {
    return static_cast<std::size_t>(std::upper_bound(end_.begin(), end_.end(), piece) - end_.begin());
  }
  std::int64_t end(std::size_t rank) const { return end_[rank]; }
  std::int64_t begin(std::size_t rank) const { return rank == 0 ? 0 : end_[rank - 1]; }
  /// A buffer and chunk that a piece belongs to; in place, the output.
  std::pair<Buffer, std::int64_t> name(std::size_t rank, std::int64_t piece, const RankRows& rows) const {
    if (piece >= base_[rank][2]) return {Buffer::kScratch, (piece - base_[rank][2]) % std::max<std::int64_t>(scratch_[rank], 1) / per_chunk_[2]};
    for (const Buffer buffer : {Buffer::kOutput, Buffer::kInput}) {
      const auto b = static_cast<std::size_t>(buffer);
      const std::int64_t chunk = (piece - base_[rank][b]) / per_chunk_[b];
      if (piece >= base_[rank][b] && chunk < rows.chunks[b]) return {buffer, chunk};
    }
    return {Buffer::kNone, -1};
  }

 private:
  std::array<std::int64_t, 3> per_chunk_{};
  std::vector<std::array<std::int64_t, 3>> base_;
  std::vector<std::int64_t> scratch_;
  std::vector<std::int64_t> end_;
  std::int64_t pieces_ = 0;
  bool double_scratch_ = false;
};

/// Which FIFO, counters or proxy each connection of each rank is.
class Links {
 public:
  struct Ends {
    std::uint32_t out = kNone;    ///< FIFO written, or counter of the signals sent
    std::uint32_t in = kNone;     ///< FIFO read, or counter of the signals received
    std::uint32_t proxy = kNone;  ///< of a port
  };
  struct Fifo {
    Place writer;  ///< where the one block that writes first does so; rank -1: nobody
    Place reader;
    std::uint32_t slots = 0;
    bool has_out = false;
    bool has_in = false;
    std::array<std::uint8_t, 2> protocol{};  ///< as the writing and the reading end have it
  };

  Links(const std::vector<RankRows>& ranks, const RunOptions& options, Findings& findings) {
    std::size_t connections = 0;
    for (const auto& rank : ranks) connections += rank.connections.size();
    ends_.reserve(connections);
    fifo_ids_.make_room(connections);
    counter_ids_.make_room(2 * connections);
    fifos_.reserve(connections / 2);
    std::uint32_t at = 0;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      first_.push_back(at);
      at += static_cast<std::uint32_t>(ranks[r].connections.size());
      for (const auto& connection : ranks[r].connections) ends_.push_back(join(static_cast<std::int32_t>(r), connection, options));
    }
    for (std::size_t r = 0; r < ranks.size(); ++r) take_ends(ranks, r, findings);
    for (const auto& fifo : fifos_) {
      if (fifo.writer.rank >= 0 && !fifo.has_in) findings.add({.rule = Rule::kConnectionMissing, .at = fifo.writer, .other = {}});
      if (fifo.has_in && fifo.has_out && fifo.protocol[0] != fifo.protocol[1])
        findings.add({.rule = Rule::kProtocolsDiffer, .at = fifo.writer, .other = fifo.reader, .got = fifo.protocol[0], .wanted = fifo.protocol[1]});
      if (fifo.reader.rank >= 0 && !fifo.has_out) findings.add({.rule = Rule::kConnectionMissing, .at = fifo.reader, .other = {}});
    }
  }

  const Ends& ends(std::size_t rank, std::int32_t via) const { return ends_[first_[rank] + static_cast<std::uint32_t>(via)]; }
  const std::vector<Fifo>& fifos() const { return fifos_; }
  std::size_t counters() const { return counter_ids_.size(); }
  std::size_t proxies() const { return proxies_; }
  /// The block that first signals a counter, for reports.
  Place signaller(std::uint32_t counter) const { return counter < signallers_.size() ? signallers_[counter] : Place{}; }

 private:
  struct Key {
    std::int32_t kind, from, to, channel;
    bool operator==(const Key&) const = default;
  };
  /// Numbers keys from 0, in the order in which they are first asked for: open addressing, since a plan has a connection every few instructions.
  class Numbers {
   public:
    /// For at most so many different keys.
    void make_room(std::size_t keys) { places_.assign(std::bit_ceil(2 * keys + 1), kNone); }
    std::uint32_t of(const Key& key) {
      const std::size_t mask = places_.size() - 1;
      for (std::size_t place = hash(key) & mask;; place = (place + 1) & mask) {
        std::uint32_t& number = places_[place];
        if (number == kNone) {
          number = static_cast<std::uint32_t>(keys_.size());
          keys_.push_back(key);
        }
        if (keys_[number] == key) return number;
      }
    }
    std::size_t size() const { return keys_.size(); }

   private:
    static std::size_t hash(const Key& key) {
      const auto wide = [](std::int32_t a, std::int32_t b) { return static_cast<std::uint64_t>(static_cast<std::uint32_t>(a)) << 32 | static_cast<std::uint32_t>(b); };
      return scrambled(wide(key.from, key.to) ^ scrambled(wide(key.kind, key.channel)));
    }
    std::vector<Key> keys_;
    std::vector<std::uint32_t> places_;
  };

  Ends join(std::int32_t rank, const Connection& connection, const RunOptions& options) {
    const auto kind = static_cast<std::int32_t>(connection.kind);
    switch (connection.kind) {
      case ConnectionKind::kFifoOut:
      case ConnectionKind::kFifoIn: {
        const bool out = connection.kind == ConnectionKind::kFifoOut;
        const Key key{0, out ? rank : connection.peer, out ? connection.peer : rank, connection.channel};
        const auto id = fifo_ids_.of(key);
        if (id == fifos_.size()) fifos_.push_back({});
        auto& fifo = fifos_[id];
        const std::uint32_t slots = connection.slots != 0 ? connection.slots : options.slots[connection.protocol];
        fifo.slots = fifo.slots == 0 ? slots : std::min(fifo.slots, slots);
        (out ? fifo.has_out : fifo.has_in) = true;
        fifo.protocol[out ? 0 : 1] = connection.protocol;
        return out ? Ends{.out = id, .in = kNone, .proxy = kNone} : Ends{.out = kNone, .in = id, .proxy = kNone};
      }
      case ConnectionKind::kMemory:
      case ConnectionKind::kPort: {
        const auto out = counter_ids_.of({kind, rank, connection.peer, connection.channel});
        const auto in = counter_ids_.of({kind, connection.peer, rank, connection.channel});
        return {out, in, connection.kind == ConnectionKind::kPort ? static_cast<std::uint32_t>(proxies_++) : kNone};
      }
      default: return {};
    }
  }

  /// Each FIFO end belongs to one block. Connections that move with loops are looked at while running.
  void take_ends(const std::vector<RankRows>& ranks, std::size_t r, Findings& findings) {
    const RankRows& rank = ranks[r];
    signallers_.resize(counter_ids_.size());
    for (std::size_t b = 0; b < rank.blocks.size(); ++b) {
      Op op = Op::kOperand;
      for (std::int32_t i = rank.blocks[b].first; i < rank.blocks[b].last; ++i) {
        const Row& row = rank.rows[static_cast<std::size_t>(i)];
        if (row.op != Op::kOperand) op = row.op;
        if (!names_connection(op) || row.via < 0 || static_cast<std::size_t>(row.via) >= rank.connections.size()) continue;
        const Ends& end = ends(r, row.via);
        const Place here{static_cast<std::int32_t>(r), static_cast<std::int32_t>(b), i - rank.blocks[b].first, -1};
        const ConnectionKind kind = rank.connections[static_cast<std::size_t>(row.via)].kind;
        if (kind == ConnectionKind::kFifoOut || kind == ConnectionKind::kFifoIn) {
          Fifo& fifo = fifos_[kind == ConnectionKind::kFifoOut ? end.out : end.in];
          Place& holder = kind == ConnectionKind::kFifoOut ? fifo.writer : fifo.reader;
          if (holder.rank < 0)
            holder = here;
          else if (holder.block != here.block)
            findings.add({.rule = Rule::kConnectionShared, .at = here, .other = holder});
        } else if ((op == Op::kSignal || op == Op::kPutSignal || op == Op::kPutSignalFlush) && end.out != kNone) {
          if (signallers_[end.out].rank < 0) signallers_[end.out] = here;
        }
      }
    }
  }

  std::vector<std::uint32_t> first_;
  std::vector<Ends> ends_;
  std::vector<Fifo> fifos_;
  std::vector<Place> signallers_;
  Numbers fifo_ids_, counter_ids_;
  std::size_t proxies_ = 0;
};

}  // namespace busbw::schedule::detail
