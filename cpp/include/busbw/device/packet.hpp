/// Packets: data and the news of their arrival in one store, so that a small message takes one way and no signal.
///
/// LL: 16 bytes, two words of 4 bytes of data and 4 of flag; every word is whole, so half a packet may come before the other, never half a word.
/// LL128: 128 bytes, 120 of data and a flag behind them, which comes with or after them. The flag of a message is its number, never 0: nothing is
/// cleared. Who stores into a place anew must know that what lay there was taken. Source of both formats: NVIDIA/nccl, src/device/prims_ll.h, prims_ll128.h.
#pragma once

#include "busbw/device/wait.hpp"

namespace busbw::device {

/// How bytes lie in memory.
enum class Form : unsigned char { plain, ll, ll128 };

inline constexpr std::size_t kWordBytes = 8;
/// Of data in an LL128 line.
inline constexpr std::size_t kLineWords = 15;

/// Where the byte-th byte of data lies in packets; byte is a multiple of the data of one.
BUSBW_DEVICE constexpr std::size_t wire_offset(Form form, std::size_t byte) {
  return form == Form::plain ? byte : form == Form::ll ? byte * 2 : byte / (kLineWords * kWordBytes) * ((kLineWords + 1) * kWordBytes);
}
/// Memory that so many bytes of data take as packets.
BUSBW_DEVICE constexpr std::size_t wire_bytes(Form form, std::size_t bytes) {
  const std::size_t each = form == Form::ll128 ? kLineWords * kWordBytes : form == Form::ll ? kWordBytes : 1;
  return wire_offset(form, (bytes + each - 1) / each * each);
}

/// Bytes as they lie somewhere; of `valid` of them memory is there, what is beyond reads as anything and is not stored.
struct Stretch {
  std::byte* at;
  std::size_t valid;
  Form form;
  std::uint32_t flag;  ///< of packets
};

namespace detail {

/// Up to 8 bytes of plain memory as a word; weak.
BUSBW_DEVICE std::uint64_t load_word(const std::byte* p, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  if (bytes == kWordBytes && address % kWordBytes == 0) return weak_load(reinterpret_cast<const std::uint64_t*>(p));
  std::uint64_t word = 0;
  if (bytes == kWordBytes && address % 4 == 0) {
    word = weak_load(reinterpret_cast<const std::uint32_t*>(p));
    return word | static_cast<std::uint64_t>(weak_load(reinterpret_cast<const std::uint32_t*>(p) + 1)) << 32;
  }
  for (std::size_t i = 0; i < bytes; ++i) word |= static_cast<std::uint64_t>(weak_load(reinterpret_cast<const std::uint8_t*>(p) + i)) << (8 * i);
  return word;
}
BUSBW_DEVICE void store_word(std::byte* p, std::uint64_t word, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  if (bytes == kWordBytes && address % kWordBytes == 0) return weak_store(reinterpret_cast<std::uint64_t*>(p), word);
  if (bytes == kWordBytes && address % 4 == 0) {
    weak_store(reinterpret_cast<std::uint32_t*>(p), static_cast<std::uint32_t>(word));
    return weak_store(reinterpret_cast<std::uint32_t*>(p) + 1, static_cast<std::uint32_t>(word >> 32));
  }
  for (std::size_t i = 0; i < bytes; ++i) weak_store(reinterpret_cast<std::uint8_t*>(p) + i, static_cast<std::uint8_t>(word >> (8 * i)));
}

BUSBW_DEVICE std::uint64_t flagged(std::uint32_t data, std::uint32_t flag) { return static_cast<std::uint64_t>(flag) << 32 | data; }

/// Words first .. first + count - 1 of a stretch; count is 1, or a whole line where there are LL128 packets. Packets are waited for. Part of its caller, so
/// that with a form and a count that the compiler knows the words stay in registers.
BUSBW_DEVICE WaitResult load_words_here(const Stretch& from, std::size_t first, std::size_t count, std::uint64_t* words, Deadline deadline,
                                        std::uint32_t block, std::uint32_t peer) {
  if (from.form == Form::plain) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t byte = (first + i) * kWordBytes;
      const std::size_t left = from.valid > byte ? from.valid - byte : 0;
      words[i] = left ? load_word(from.at + byte, left < kWordBytes ? left : kWordBytes) : 0;
    }
    return kArrived;
  }
  auto* const at = reinterpret_cast<std::uint64_t*>(from.at + wire_offset(from.form, first * kWordBytes));
  if (from.form == Form::ll128) {
    while (!load_line(at, words, from.flag))
      if (const WaitResult stop = deadline.poll(); stop != kArrived) return deadline.give_up(stop, Primitive::packet_wait, block, peer, from.flag, 0);
    return kArrived;
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t low, high;
    for (;;) {
      load_packet(at + 2 * i, low, high);
      if (static_cast<std::uint32_t>(low >> 32) == from.flag && static_cast<std::uint32_t>(high >> 32) == from.flag) break;
      if (const WaitResult stop = deadline.poll(); stop != kArrived)
        return deadline.give_up(stop, Primitive::packet_wait, block, peer, from.flag, low >> 32);
    }
    packet_taken(at + 2 * i);
    words[i] = (low & 0xffffffffu) | high << 32;
  }
  return kArrived;
}

BUSBW_DEVICE_CALL WaitResult load_words(const Stretch& from, std::size_t first, std::size_t count, std::uint64_t* words, Deadline deadline,
                                        std::uint32_t block, std::uint32_t peer) {
  return load_words_here(from, first, count, words, deadline, block, peer);
}

BUSBW_DEVICE void store_words_here(const Stretch& to, std::size_t first, std::size_t count, const std::uint64_t* words) {
  if (to.form == Form::plain) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t byte = (first + i) * kWordBytes;
      if (to.valid > byte) store_word(to.at + byte, words[i], to.valid - byte < kWordBytes ? to.valid - byte : kWordBytes);
    }
    return;
  }
  auto* const at = reinterpret_cast<std::uint64_t*>(to.at + wire_offset(to.form, first * kWordBytes));
  if (to.form == Form::ll128) return store_line(at, words, to.flag);
  for (std::size_t i = 0; i < count; ++i)
    store_packet(at + 2 * i, flagged(static_cast<std::uint32_t>(words[i]), to.flag), flagged(static_cast<std::uint32_t>(words[i] >> 32), to.flag));
}
BUSBW_DEVICE_CALL void store_words(const Stretch& to, std::size_t first, std::size_t count, const std::uint64_t* words) {
  store_words_here(to, first, count, words);
}

}  // namespace detail

}  // namespace busbw::device
