/// A kernel that runs any legal plan (`busbw.collectives.plan`): sends and receives through FIFOs, puts, gets, signals, packets, multicast,
/// flags, semaphores and barriers, loops and slices.
///
/// Every chunk is cut into pieces of run_bytes, so that a message fits a slot; the rows run once for each piece, one run after the other in a
/// block, and two blocks need not be in the same one: pieces do not meet. What is in a FIFO is ordered by its counters; everything else as the plan says.
/// Order of a reduction: what a row says, left to right; what arrives stands left of what is there.
#pragma once

#include "busbw/device/arithmetic.hpp"
#include "busbw/device/program.hpp"
#include "busbw/device/semaphore.hpp"

namespace busbw::device {

namespace detail {

inline constexpr std::uint32_t kMostSources = 16;  ///< that one pass reduces; more go in several

/// targets, one or two, = op over sources. bytes: of the longest. Plain memory by vectors, packets word by word. All threads of the block call.
template <class Reducer>
BUSBW_DEVICE_CALL WaitResult combine(const Program& program, const Block& block, const Reducer& reducer, ReduceOp op, const Stretch* targets,
                                std::uint32_t target_count, const Stretch* sources, std::uint32_t source_count, std::size_t bytes, std::uint32_t peer) {
  bool packets = false, lines = false;
  std::size_t valid = bytes;
  const auto look_at = [&](const Stretch& one) {
    packets = packets || one.form != Form::plain;
    lines = lines || one.form == Form::ll128;
    if (one.valid < valid) valid = one.valid;
  };
  for (std::uint32_t i = 0; i < target_count; ++i) look_at(targets[i]);
  for (std::uint32_t i = 0; i < source_count; ++i) look_at(sources[i]);
  if (!packets) {
    std::byte* from[kMostSources];
    for (std::uint32_t i = 0; i < source_count; ++i) from[i] = sources[i].at;
    if (source_count > 1 || target_count > 1)
      reducer.reduce(block, targets[0].at, target_count > 1 ? targets[1].at : nullptr, from, source_count, valid, op);
    else if (targets[0].at != from[0])
      copy_bytes(block, targets[0].at, from[0], valid);
    return kArrived;
  }
  const std::size_t words = (bytes + kWordBytes - 1) / kWordBytes, each = lines ? kLineWords : 1;
  WaitResult mine = kArrived;
  for_each_of_thread((words + each - 1) / each, block.thread, block.threads, [&](std::size_t unit) {
    std::uint64_t sum[kLineWords], next[kLineWords];
    for (std::uint32_t k = 0; k < source_count && mine == kArrived; ++k) {
      mine = load_words(sources[k], unit * each, each, k ? next : sum, program.deadline(), block.block, peer);
      for (std::size_t i = 0; k && i < each; ++i) sum[i] = reducer.words(sum[i], next[i], op);
    }
    for (std::uint32_t k = 0; k < target_count && mine == kArrived; ++k) store_words(targets[k], unit * each, each, sum);
  });
  return mine;
}

}  // namespace detail

/// Says nothing of when rows run. What does has the same two members.
struct NoTrace {
  BUSBW_DEVICE std::uint64_t now() const { return 0; }
  BUSBW_DEVICE void add(std::int32_t, std::uint64_t) const {}
};

/// Runs the rows of one block of a rank. `Reducer`: reduce() and words() of Arithmetic. `Trace`: told of each row when it has ended. All threads of all blocks
/// call, each once.
template <class Reducer, class Trace = NoTrace>
class Interpreter {
 public:
  BUSBW_DEVICE Interpreter(const Program& program, const Block& block, const Reducer& reducer, ReduceOp op, Trace trace = {})
      : p_(program), block_(block), reducer_(reducer), op_(op), trace_(trace) {}

  BUSBW_DEVICE WaitResult run() {
    first_run_ = weak_load(&own_line()[0]);
    WaitResult result = kArrived;
    leads_ = static_cast<std::int32_t>(p_.block_runs[block_.block].leads);
    if (leads_ > 0 && p_.runs > 0) result = lead(0);
    for (turn_ = 0; turn_ < p_.runs && result == kArrived; ++turn_) {
      if (leads_ > 0 && turn_ + 1 < p_.runs) result = lead(turn_ + 1);
      if (result == kArrived) result = run_once();
    }
    if (block_.thread == 0) {  // a run ends in a meeting: all have read it
      weak_store(&own_line()[0], first_run_ + p_.runs);
      SystemAtomic<std::uint64_t>(p_.word(p_.rank, p_.proxy_at)).fetch_add(1, kRelease);  // all that it posted lies in rings
    }
    return result;
  }

 private:
  using Row = plan::Row;
  using Op = plan::Op;
  struct Frame {
    std::int32_t begin, end;
    std::uint64_t turn, times;
    bool slices;
  };
  /// An operand as it is now: bytes first .. last of `count` chunks from chunk `index` on.
  struct Operand {
    const Space* space;
    std::uint64_t index;
    std::uint64_t first, last;
    std::uint32_t count;
    bool packets;
  };
  struct Where {
    std::uint64_t offset, left;
  };
  /// A message in a slot.
  struct Slot {
    std::byte* at;
    std::uint64_t number;
    Form form;
  };

  BUSBW_DEVICE std::uint64_t* own_line() const { return &p_.word(p_.rank, p_.blocks_at + block_.block * 2 * Program::kLine); }
  BUSBW_DEVICE std::uint64_t run_number() const { return first_run_ + turn_; }

  /// The first rows of a run, which the host has found to be sends that may go ahead (`linking.py`).
  BUSBW_DEVICE WaitResult lead(std::uint64_t turn) {
    const std::uint64_t now = turn_;
    turn_ = turn;
    depth_ = 0;
    WaitResult result = kArrived;
    const std::int32_t first = p_.block_rows[block_.block].first;
    for (std::int32_t i = 0; i < leads_ && result == kArrived; ++i) result = traced(first + i);
    turn_ = now;
    return result;
  }

  BUSBW_DEVICE_CALL WaitResult run_once() {
    const plan::Block rows = p_.block_rows[block_.block];
    depth_ = 0;
    sets_ = 0;
    std::int32_t at = rows.first + leads_;
    for (;;) {
      while (depth_ > 0 && frames_[depth_ - 1].end == at) {
        Frame& frame = frames_[depth_ - 1];
        if (++frame.turn < frame.times)
          at = frame.begin;
        else
          --depth_;
      }
      if (at == rows.last) break;
      const Row& row = p_.rows[at];
      if (row.op == Op::kLoop || row.op == Op::kSlices) {
        const bool slices = row.op == Op::kSlices;
        const std::uint64_t unit = slices ? static_cast<std::uint64_t>(row.src) : 1;
        const std::uint64_t times = slices ? (static_cast<std::uint64_t>(row.count) * p_.chunk_bytes + unit - 1) / unit : static_cast<std::uint64_t>(row.count);
        if (times > 0 && row.dst > 0) {
          frames_[depth_++] = {at + 1, at + 1 + row.dst, 0, times, slices};
          if (slices) slice_bytes_ = unit;
          ++at;
        } else {
          at += 1 + row.dst;
        }
        continue;
      }
      if (const WaitResult stop = traced(at); stop != kArrived) return stop;
      at += 1 + row.more;
    }
    return agreed();
  }

  /// All threads get the same answer: kArrived, or that one of them gave up. A meeting of the block's threads.
  BUSBW_DEVICE WaitResult agreed() {
    return block_.agreed(stopped_);
  }
  /// Between rows of a block whose rows are in order.
  BUSBW_DEVICE void in_order() const {
    if (p_.in_order) block_.sync();
  }
  BUSBW_DEVICE WaitResult waited() { return p_.in_order ? agreed() : kArrived; }

  BUSBW_DEVICE WaitResult traced(std::int32_t at) {
    const std::uint64_t begun = trace_.now();
    const WaitResult result = execute(p_.rows[at]);
    trace_.add(at, begun);
    return result;
  }

  BUSBW_DEVICE WaitResult execute(const Row& row) {
    switch (row.op) {
      case Op::kSend:
      case Op::kRecv:
      case Op::kRecvCopySend:
      case Op::kRecvReduceCopy:
      case Op::kRecvReduceSend:
      case Op::kRecvReduceCopySend: return through_fifo(row);
      case Op::kCopy:
      case Op::kPut:
      case Op::kGet:
      case Op::kPack:
      case Op::kUnpack:
      case Op::kPutPackets:
      case Op::kForwardPackets: return each_pair(row);
      case Op::kPutSignal:
      case Op::kPutSignalFlush: {
        if (const WaitResult stop = each_pair(row); stop != kArrived) return stop;
        block_.sync();
        signal(row, kRelease);
        return row.op == Op::kPutSignalFlush ? flush(row) : kArrived;
      }
      case Op::kSignal:
        in_order();
        signal(row, order_of(row, kRelease));
        return kArrived;
      case Op::kWait: return wait(row);
      case Op::kFlush: return flush(row);
      case Op::kReduce: return reduce(row, false);
      case Op::kReducePackets: return reduce(row, true);
      case Op::kMulticast:
      case Op::kMulticastPackets: return multicast(row);
      case Op::kGroupReduce:
      case Op::kGroupReduceMulticast: return group_reduce(row);
      case Op::kSync: return agreed();
      case Op::kBarrier: return barrier(row);
      case Op::kFlagSet:
        in_order();
        ++sets_;
        if (block_.thread == 0)
          SystemAtomic<std::uint64_t>(own_line()[Program::kLine / 8]).store(run_number() * p_.block_runs[block_.block].flag_sets + sets_, order_of(row, kRelease));
        return kArrived;
      case Op::kFlagWait: return wait_flag(row);
      case Op::kRelease: return release(row);
      case Op::kAcquire: return acquire(row);
      default: return kArrived;
    }
  }

  // Operands

  BUSBW_DEVICE std::int64_t moved(std::int64_t index, const std::int32_t (&step)[plan::kMaxLoops], std::int32_t first, std::int32_t wrap) const {
    std::size_t level = 0;
    for (std::uint32_t d = 0; d < depth_; ++d)
      if (!frames_[d].slices) index += std::int64_t{step[level++]} * static_cast<std::int64_t>(frames_[d].turn);
    if (wrap > 0) {
      const std::int64_t over = (index - first) % wrap;
      index = first + (over < 0 ? over + wrap : over);
    }
    return index;
  }
  BUSBW_DEVICE const plan::Walk& walk_of(const Row& row) const { return p_.walks[row.walk]; }
  BUSBW_DEVICE std::int64_t via(const Row& row) const { return row.walk ? moved(row.via, walk_of(row).via_step, 0, 0) : row.via; }
  BUSBW_DEVICE const Way& way_of(const Row& row) const { return p_.ways[via(row)]; }
  BUSBW_DEVICE static const Row& operand_row(const Row& row, std::uint32_t i) { return (&row)[i]; }
  /// A plan counts on its launch's relaxed signals to tell what was before the launch (`legality.py`); where they don't, `strong` is taken.
  BUSBW_DEVICE static Order order_of(const Row& row, Order strong) {
    return row.order == plan::Order::kRelaxed && kLaunchIsFence ? kRelaxed : strong;
  }
  BUSBW_DEVICE ReduceOp reduction_of(const Row& row) const {
    switch (static_cast<plan::Reduction>(row.reduction)) {
      case plan::Reduction::kSum: return ReduceOp::sum;
      case plan::Reduction::kMin: return ReduceOp::min;
      case plan::Reduction::kMax: return ReduceOp::max;
      default: return op_;
    }
  }

  BUSBW_DEVICE_CALL Operand operand(const Row& row, bool src, std::uint32_t owner, bool packets = false) const {
    const plan::Buffer buffer = src ? row.src_buffer : row.dst_buffer;
    std::int64_t index = src ? row.src : row.dst;
    Operand out{&p_.spaces[owner * kSpaces + (packets ? kPacketSpace : static_cast<std::uint32_t>(buffer))], 0, 0,
                static_cast<std::uint64_t>(row.count) * p_.chunk_bytes, static_cast<std::uint32_t>(row.count), packets};
    for (std::uint32_t d = 0; d < depth_; ++d)
      if (frames_[d].slices) {
        out.first = frames_[d].turn * slice_bytes_;
        if (out.first + slice_bytes_ < out.last) out.last = out.first + slice_bytes_;
        if (out.first > out.last) out.first = out.last;
      }
    if (row.walk) {
      const plan::Walk& walk = walk_of(row);
      index = src ? moved(index, walk.src_step, walk.src_first, walk.src_wrap) : moved(index, walk.dst_step, walk.dst_first, walk.dst_wrap);
      if (walk.parts > 1) {
        const std::uint64_t all = out.last - out.first;
        const auto cut = [&](std::uint64_t part) { return part == walk.parts ? all : all * part / walk.parts / p_.grain * p_.grain; };
        out.last = out.first + cut(walk.part + std::uint64_t{1});
        out.first += cut(walk.part);
      }
    }
    out.index = static_cast<std::uint64_t>(index);
    return out;
  }
  BUSBW_DEVICE Operand local(const Row& row, bool src, bool packets = false) const { return operand(row, src, p_.rank, packets); }
  BUSBW_DEVICE Operand remote(const Row& row, bool src, bool packets = false) const {
    return operand(row, src, static_cast<std::uint32_t>(way_of(row).peer), packets);
  }
  BUSBW_DEVICE Operand either(const Row& row, bool src, bool packets = false) const {
    return row.via < 0 ? local(row, src, packets) : remote(row, src, packets);
  }

  /// Whether the operand lies in one piece.
  BUSBW_DEVICE bool straight(const Operand& one) const {
    return p_.runs == 1 && one.index % one.space->chunks_per_part + one.count <= one.space->chunks_per_part;
  }
  /// Where byte `byte` of the operand's chunk-th chunk lies in its space, and how much the part still has.
  BUSBW_DEVICE Where where(const Operand& one, std::uint64_t chunk, std::uint64_t byte) const {
    const Space& space = *one.space;
    const std::uint64_t index = one.index + chunk;
    const std::uint64_t half = space.half_bytes && run_number() / p_.runs % 2 ? space.half_bytes : 0;
    if (one.packets) return {half + wire_offset(Form::ll, index * p_.chunk_bytes + byte), ~std::uint64_t{0}};
    const std::uint64_t within = index % space.chunks_per_part * p_.chunk_bytes + byte;
    const std::uint64_t left = space.part_bytes > within ? space.part_bytes - within : 0;
    return {half + index / space.chunks_per_part * space.part_bytes + (left ? within : space.part_bytes), left};
  }
  BUSBW_DEVICE Stretch stretch(const Operand& one, std::uint64_t chunk, std::uint64_t byte, std::uint64_t bytes) const {
    const Where place = where(one, chunk, byte);
    if (one.packets) return {one.space->base + place.offset, bytes, Form::ll, static_cast<std::uint32_t>(run_number() + 1)};
    return {one.space->base + place.offset, place.left < bytes ? place.left : bytes, Form::plain, 0};
  }
  BUSBW_DEVICE static Stretch stretch_of_slot(const Slot& slot, std::uint64_t byte, std::uint64_t bytes) {
    return {slot.at + wire_offset(slot.form, byte), bytes, slot.form, static_cast<std::uint32_t>(slot.number + 1)};
  }

  /// body(chunk, byte, bytes, byte in a slot) for each piece of operands of one shape, of this run. `whole`: all of them are straight.
  template <class Body>
  BUSBW_DEVICE WaitResult each_piece(const Operand& shape, bool whole, Body body) {
    if (whole) return body(std::uint64_t{0}, shape.first, shape.last - shape.first, shape.first);
    const std::uint64_t from = turn_ * p_.run_bytes, to = from + p_.run_bytes < p_.chunk_bytes ? from + p_.run_bytes : p_.chunk_bytes;
    WaitResult result = kArrived;
    for (std::uint64_t chunk = shape.first / p_.chunk_bytes; chunk * p_.chunk_bytes < shape.last && result == kArrived; ++chunk) {
      const std::uint64_t begin = chunk * p_.chunk_bytes;
      const std::uint64_t first = shape.first > begin + from ? shape.first - begin : from;
      const std::uint64_t last = shape.last < begin + to ? shape.last - begin : to;
      if (first < last) result = body(chunk, first, last - first, chunk * p_.run_bytes + first - from);
    }
    return result;
  }

  // Through a FIFO

  BUSBW_DEVICE static Form form_of(plan::Protocol protocol) {
    return protocol == plan::Protocol::kLl ? Form::ll : protocol == plan::Protocol::kLl128 ? Form::ll128 : Form::plain;
  }
  BUSBW_DEVICE Slot slot_of(const Way& way, std::uint32_t at_rank) const {
    const std::uint64_t number = weak_load(&p_.word(p_.rank, way.count_at));
    return {p_.wire.base[at_rank] + way.slots_at + number % way.slots * way.slot_bytes, number, form_of(way.protocol)};
  }

  BUSBW_DEVICE_CALL WaitResult through_fifo(const Row& row) {
    const bool receives = row.op != Op::kSend;
    const bool sends = row.op != Op::kRecv && row.op != Op::kRecvReduceCopy;
    const bool reads = row.op == Op::kSend || row.op == Op::kRecvReduceCopy || row.op == Op::kRecvReduceSend || row.op == Op::kRecvReduceCopySend;
    const bool stores = row.op != Op::kSend && row.op != Op::kRecvReduceSend;
    const Way* const in = receives ? &way_of(row) : nullptr;
    const Way* const out = !sends ? nullptr : receives ? &way_of(operand_row(row, 1)) : &way_of(row);
    if (block_.thread == 0 && stopped_ == kArrived) {
      if (in && form_of(in->protocol) == Form::plain) {
        const std::uint64_t number = weak_load(&p_.word(p_.rank, in->count_at));
        stopped_ = wait_until(p_.word(p_.rank, in->mine), number + 1, kAcquire, p_.deadline(), Primitive::channel_wait, block_.block,
                              static_cast<std::uint32_t>(in->peer));
      }
      if (out && stopped_ == kArrived) {
        const std::uint64_t number = weak_load(&p_.word(p_.rank, out->count_at));
        stopped_ = wait_until(p_.word(p_.rank, out->mine), number + 1 - out->slots, kAcquire, p_.deadline(), Primitive::slot_wait, block_.block,
                              static_cast<std::uint32_t>(out->peer));
      }
    }
    if (const WaitResult stop = agreed(); stop != kArrived) return stop;
    const Operand src = reads ? local(row, true) : Operand{}, dst = stores ? local(row, false) : Operand{};
    const Operand& shape = reads ? src : dst;
    const Slot from = in ? slot_of(*in, p_.rank) : Slot{}, onto = out ? slot_of(*out, static_cast<std::uint32_t>(out->peer)) : Slot{};
    const bool whole = (!reads || straight(src)) && (!stores || straight(dst));
    const ReduceOp op = reduction_of(row);
    const WaitResult mine = each_piece(shape, whole, [&](std::uint64_t chunk, std::uint64_t byte, std::uint64_t bytes, std::uint64_t in_slot) {
      Stretch sources[2], targets[2];
      std::uint32_t source_count = 0, target_count = 0;
      if (in) sources[source_count++] = stretch_of_slot(from, in_slot, bytes);
      if (reads) sources[source_count++] = stretch(src, chunk, byte, bytes);
      if (stores) targets[target_count++] = stretch(dst, chunk, byte, bytes);
      if (out) targets[target_count++] = stretch_of_slot(onto, in_slot, bytes);
      return detail::combine(p_, block_, reducer_, op, targets, target_count, sources, source_count, bytes,
                             static_cast<std::uint32_t>(in ? in->peer : out->peer));
    });
    if (mine != kArrived) stopped_ = mine;
    if (const WaitResult stop = agreed(); stop != kArrived) return stop;
    if (block_.thread == 0) {
      if (in) {
        weak_store(&p_.word(p_.rank, in->count_at), from.number + 1);
        SystemAtomic<std::uint64_t>(p_.word(static_cast<std::uint32_t>(in->peer), in->their)).store(from.number + 1, kRelease);  // the slot is free
      }
      if (out) {
        weak_store(&p_.word(p_.rank, out->count_at), onto.number + 1);
        if (form_of(out->protocol) == Form::plain)
          SystemAtomic<std::uint64_t>(p_.word(static_cast<std::uint32_t>(out->peer), out->their)).store(onto.number + 1, kRelease);  // it is there
      }
    }
    return kArrived;
  }

  // Memory

  BUSBW_DEVICE_CALL WaitResult each_pair(const Row& first) {
    in_order();
    const bool to_peer = first.op == Op::kPut || first.op == Op::kPutSignal || first.op == Op::kPutSignalFlush || first.op == Op::kPutPackets ||
                         first.op == Op::kForwardPackets;
    const bool raw = first.op == Op::kPutPackets && way_of(first).kind == plan::ConnectionKind::kPort;
    const bool from_packets = first.op == Op::kUnpack || first.op == Op::kForwardPackets;
    const bool to_packets = first.op == Op::kPack || first.op == Op::kPutPackets || first.op == Op::kForwardPackets;
    for (std::uint32_t i = 0; i <= first.more; ++i) {
      const Row& row = operand_row(first, i);
      const Operand src = first.op == Op::kGet ? remote(row, true) : local(row, true, from_packets || raw);
      const Operand dst = to_peer ? remote(row, false, to_packets) : local(row, false, to_packets);
      if (to_peer && way_of(row).kind == plan::ConnectionKind::kPort && (raw || !to_packets)) {
        post_put(way_of(row), src, dst);
        continue;
      }
      const WaitResult mine = each_piece(src, straight(src) && straight(dst), [&](std::uint64_t chunk, std::uint64_t byte, std::uint64_t bytes, std::uint64_t) {
        const Stretch source = stretch(src, chunk, byte, bytes), target = stretch(dst, chunk, byte, bytes);
        return detail::combine(p_, block_, reducer_, op_, &target, 1, &source, 1, bytes, peer_of(row));
      });
      if (mine != kArrived) stopped_ = mine;
    }
    return from_packets ? waited() : kArrived;
  }
  /// Leaves the put to the proxy, piece by piece. Packets go as the bytes that they are.
  BUSBW_DEVICE_CALL void post_put(const Way& way, const Operand& src, const Operand& dst) {
    if (block_.thread != 0) return;
    each_piece(src, straight(src) && straight(dst), [&](std::uint64_t chunk, std::uint64_t byte, std::uint64_t bytes, std::uint64_t) {
      const Where from = where(src, chunk, byte), to = where(dst, chunk, byte);
      std::uint64_t count = src.packets ? wire_bytes(Form::ll, bytes) : bytes;
      if (from.left < count) count = from.left;
      if (to.left < count) count = to.left;
      if (count > 0 && stopped_ == kArrived)
        stopped_ = port_of(way).post({0, src.packets ? OrderKind::put_packets : OrderKind::put, static_cast<std::uint32_t>(way.peer), window_of(src), window_of(dst),
                                      from.offset, to.offset, count, 0},
                                     p_.deadline());
      return kArrived;
    });
  }
  BUSBW_DEVICE Port port_of(const Way& way) const { return {p_.ring(way), block_.block, static_cast<std::uint32_t>(way.peer)}; }
  BUSBW_DEVICE std::uint32_t window_of(const Operand& one) const { return static_cast<std::uint32_t>(one.space - p_.spaces) % kSpaces; }

  BUSBW_DEVICE std::uint32_t peer_of(const Row& row) const { return row.via < 0 ? p_.rank : static_cast<std::uint32_t>(way_of(row).peer); }

  BUSBW_DEVICE_CALL WaitResult reduce(const Row& first, bool packets) {
    in_order();
    const Operand base = local(first, true), into = local(first, false);
    bool whole = straight(base) && straight(into);
    for (std::uint32_t i = 1; i <= first.more; ++i) {
      const Row& row = operand_row(first, i);
      if (row.src_buffer != plan::Buffer::kNone) whole = whole && straight(packets ? local(row, true, true) : either(row, true));
      if (row.dst_buffer != plan::Buffer::kNone) whole = whole && straight(either(row, false, packets));
    }
    const ReduceOp op = reduction_of(first);
    const WaitResult mine = each_piece(base, whole, [&](std::uint64_t chunk, std::uint64_t byte, std::uint64_t bytes, std::uint64_t) {
      Stretch sources[detail::kMostSources];
      const Stretch target = stretch(into, chunk, byte, bytes);
      sources[0] = stretch(base, chunk, byte, bytes);
      std::uint32_t count = 1;
      bool stored = false;
      WaitResult result = kArrived;
      const auto pass = [&] {
        if (stored) block_.sync();
        const WaitResult one = detail::combine(p_, block_, reducer_, op, &target, 1, sources, count, bytes, p_.rank);
        if (one != kArrived) result = one;
        sources[0] = target;
        count = 1;
        stored = true;
      };
      for (std::uint32_t i = 1; i <= first.more; ++i) {
        const Row& row = operand_row(first, i);
        if (row.src_buffer == plan::Buffer::kNone) continue;
        if (count == detail::kMostSources) pass();
        sources[count++] = stretch(packets ? local(row, true, true) : either(row, true), chunk, byte, bytes);
      }
      if (count > 1 || !stored) pass();
      for (std::uint32_t i = 1, again = 0; i <= first.more; ++i) {
        const Row& row = operand_row(first, i);
        if (row.dst_buffer == plan::Buffer::kNone) continue;
        if (again++ == 0) block_.sync();  // threads share a sum and its copies out differently
        const Stretch further = stretch(either(row, false, packets), chunk, byte, bytes);
        detail::combine(p_, block_, reducer_, op, &further, 1, &target, 1, bytes, p_.rank);
      }
      return result;
    });
    if (mine != kArrived) stopped_ = mine;
    return packets ? waited() : kArrived;
  }

  // Through a switch, or what stands for one: everyone's memory in turn

  BUSBW_DEVICE_CALL WaitResult multicast(const Row& first) {
    in_order();
    const bool packets = first.op == Op::kMulticastPackets;
    for (std::uint32_t i = 0; i <= first.more; ++i) {
      const Row& row = operand_row(first, i);
      const Multicast& group = p_.groups[way_of(row).peer];
      for (std::uint32_t m = 0; m < group.members; ++m) {
        const Operand src = local(row, true), dst = operand(row, false, group.rank[m], packets);
        each_piece(src, straight(src) && straight(dst), [&](std::uint64_t chunk, std::uint64_t byte, std::uint64_t bytes, std::uint64_t) {
          const Stretch source = stretch(src, chunk, byte, bytes), target = stretch(dst, chunk, byte, bytes);
          return detail::combine(p_, block_, reducer_, op_, &target, 1, &source, 1, bytes, group.rank[m]);
        });
      }
    }
    return kArrived;
  }

  BUSBW_DEVICE_CALL WaitResult group_reduce(const Row& first) {
    in_order();
    const ReduceOp op = reduction_of(first);
    const bool spreads = first.op == Op::kGroupReduceMulticast;
    for (std::uint32_t i = 0; i <= first.more; ++i) {
      const Row& row = operand_row(first, i);
      const Multicast& group = p_.groups[way_of(row).peer];
      const Operand into = local(row, false);
      bool whole = straight(into);
      for (std::uint32_t m = 0; m < group.members; ++m) {
        whole = whole && straight(operand(row, true, group.rank[m]));
        if (spreads) whole = whole && straight(operand(row, false, group.rank[m]));
      }
      each_piece(into, whole, [&](std::uint64_t chunk, std::uint64_t byte, std::uint64_t bytes, std::uint64_t) {
        const Stretch target = stretch(into, chunk, byte, bytes);
        Stretch sources[detail::kMostSources];
        std::uint32_t count = 0;
        for (std::uint32_t m = 0; m < group.members; ++m) {
          sources[count++] = stretch(operand(row, true, group.rank[m]), chunk, byte, bytes);
          if (count < detail::kMostSources && m + 1 < group.members) continue;
          detail::combine(p_, block_, reducer_, op, &target, 1, sources, count, bytes, p_.rank);
          block_.sync();
          sources[0] = target;
          count = 1;
        }
        for (std::uint32_t m = 0; spreads && m < group.members; ++m) {
          if (group.rank[m] == p_.rank) continue;
          const Stretch further = stretch(operand(row, false, group.rank[m]), chunk, byte, bytes);
          detail::combine(p_, block_, reducer_, op, &further, 1, &target, 1, bytes, group.rank[m]);
        }
        return kArrived;
      });
    }
    return kArrived;
  }

  // Signals

  /// Through a port: behind all puts that it was given before.
  BUSBW_DEVICE_CALL void signal(const Row& first, Order order) {
    if (block_.thread != 0) return;
    for (std::uint32_t i = 0; i <= first.more && stopped_ == kArrived; ++i) {
      const Way& way = way_of(operand_row(first, i));
      if (way.kind == plan::ConnectionKind::kPort)
        stopped_ = port_of(way).signal(way.their, p_.deadline());
      else
        SystemAtomic<std::uint64_t>(p_.word(static_cast<std::uint32_t>(way.peer), way.their)).fetch_add(1, order);
    }
  }

  BUSBW_DEVICE_CALL WaitResult wait(const Row& first) {
    if (block_.thread == 0)
      for (std::uint32_t i = 0; i <= first.more && stopped_ == kArrived; ++i) {
        const Way& way = way_of(operand_row(first, i));
        take(way.mine, way.count_at, way.kind == plan::ConnectionKind::kPort ? kAcquire : order_of(first, kAcquire), Primitive::semaphore_wait,
             static_cast<std::uint32_t>(way.peer));
      }
    return waited();
  }

  /// One from a count at `given`, of which the number at `taken` are taken.
  BUSBW_DEVICE void take(std::uint64_t given, std::uint64_t taken, Order order, Primitive primitive, std::uint32_t peer) {
    const std::uint64_t number = weak_load(&p_.word(p_.rank, taken)) + 1;
    stopped_ = wait_until(p_.word(p_.rank, given), number, order, p_.deadline(), primitive, block_.block, peer);
    if (stopped_ == kArrived) weak_store(&p_.word(p_.rank, taken), number);
  }

  /// Puts into mapped memory have left when they are stored; a port's when its proxy says so.
  BUSBW_DEVICE_CALL WaitResult flush(const Row& first) {
    if (block_.thread == 0)
      for (std::uint32_t i = 0; i <= first.more && stopped_ == kArrived; ++i)
        if (const Way& way = way_of(operand_row(first, i)); way.kind == plan::ConnectionKind::kPort) stopped_ = port_of(way).flush(p_.deadline());
    return waited();
  }

  BUSBW_DEVICE_CALL WaitResult release(const Row& first) {
    in_order();
    if (block_.thread == 0)
      for (std::uint32_t i = 0; i <= first.more; ++i)
        SystemAtomic<std::uint64_t>(p_.word(p_.rank, semaphore_at(operand_row(first, i)))).fetch_add(1, order_of(first, kRelease));
    return kArrived;
  }
  BUSBW_DEVICE_CALL WaitResult acquire(const Row& first) {
    if (block_.thread == 0)
      for (std::uint32_t i = 0; i <= first.more && stopped_ == kArrived; ++i) {
        const std::uint64_t at = semaphore_at(operand_row(first, i));
        take(at, at + Program::kLine, order_of(first, kAcquire), Primitive::semaphore_wait, p_.rank);
      }
    return waited();
  }
  BUSBW_DEVICE std::uint64_t semaphore_at(const Row& row) const { return p_.semaphores_at + static_cast<std::uint64_t>(via(row)) * 2 * Program::kLine; }

  BUSBW_DEVICE_CALL WaitResult wait_flag(const Row& row) {
    const std::int64_t times = row.walk ? moved(row.src, walk_of(row).src_step, 0, 0) : row.src;
    if (block_.thread == 0 && stopped_ == kArrived) {
      const auto other = static_cast<std::uint64_t>(row.via);
      const std::uint64_t expected = run_number() * p_.block_runs[other].flag_sets + static_cast<std::uint64_t>(times);
      stopped_ = wait_until(p_.word(p_.rank, p_.blocks_at + (other * 2 + 1) * Program::kLine), expected, order_of(row, kAcquire), p_.deadline(), Primitive::flag_wait,
                            block_.block, p_.rank);
    }
    return waited();
  }

  /// Of blocks: each adds one, and all wait until as many have come as meet. A block comes again only after all have.
  BUSBW_DEVICE_CALL WaitResult barrier(const Row& row) {
    if (const WaitResult stop = agreed(); stop != kArrived) return stop;
    if (block_.thread == 0) {
      std::uint64_t& word = p_.word(p_.rank, p_.barriers_at + static_cast<std::uint64_t>(row.via) * Program::kLine);
      const auto count = static_cast<std::uint64_t>(row.count);
      const std::uint64_t before = SystemAtomic<std::uint64_t>(word).fetch_add(1, kRelease);
      stopped_ = wait_until(word, (before / count + 1) * count, kAcquire, p_.deadline(), Primitive::barrier_wait, block_.block, p_.rank);
    }
    return agreed();
  }

  const Program& p_;
  const Block& block_;
  const Reducer& reducer_;
  ReduceOp op_;
  Trace trace_;
  Frame frames_[plan::kMaxLoops + 1];
  std::uint32_t depth_ = 0;
  std::int32_t leads_ = 0;
  std::uint64_t slice_bytes_ = 0;
  std::uint64_t first_run_ = 0;  ///< runs that ended before this launch
  std::uint64_t turn_ = 0;
  std::uint64_t sets_ = 0;       ///< of this block's flag in this run
  WaitResult stopped_ = kArrived;
};

/// Runs a rank's rows. All threads of all blocks call; results are there when all of them have returned.
template <class Reducer>
BUSBW_DEVICE WaitResult run_plan(const Program& program, const Block& block, const Reducer& reducer, ReduceOp op) {
  return Interpreter<Reducer>(program, block, reducer, op).run();
}
/// The same, and tells `trace` of each row.
template <class Reducer, class Trace>
BUSBW_DEVICE WaitResult run_plan(const Program& program, const Block& block, const Reducer& reducer, ReduceOp op, Trace trace) {
  return Interpreter<Reducer, Trace>(program, block, reducer, op, trace).run();
}

}  // namespace busbw::device
