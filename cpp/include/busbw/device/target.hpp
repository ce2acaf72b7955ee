/// Which machine the device code runs on. The only header that asks; all others are plain C++20 on top of what it gives.
///
/// - CUDA (`__CUDACC__`): a rank is a GPU, a block a thread block; inline PTX.
/// - SIM (`BUSBW_TARGET_SIM`): a simulated weak memory with a seeded scheduler; see sim.hpp.
/// - CPU (otherwise): a rank is a process or a thread; `std::atomic_ref`.
///
/// Each target gives, in namespace busbw::device:
///   BUSBW_DEVICE                       what stands before a function of the device
///   BUSBW_DEVICE_CALL                  the same of a large function, which stays one
///   SystemAtomic<T>(T& word)           load(order), store(value, order), fetch_add(value, order); scope: system; T of 4 or 8 bytes
///   weak_load(p), weak_store(p, v)     memory without order or atomicity; a thread sees its own stores, others only what
///                                      a release it acquired from covers
///   for_each_of_thread(count, thread, threads, body)   body(i) for this thread's share of 0 .. count - 1, in the order that suits the machine
///   BlockBarrier::sync()               all threads of the block; what one did before it the others see after it
///   kLaunchIsFence                     whether a launch's relaxed stores tell what was before the launch
///   store_packet, load_packet, store_line, load_line, packet_taken   data with their flag; see packet.hpp
///   kHasMultimem                       whether one address can stand for all ranks (multimem.hpp); if so multimem_load_sum_.., multimem_store_16
///   Clock::now_ns()                    for deadlines only
///   spin_pause(turn)                   between two looks at a word
/// A thread of a block is called "thread", whatever carries it.
#pragma once

#if defined(BUSBW_TARGET_SIM)
#include "busbw/device/detail/target_sim.hpp"
#elif defined(__CUDACC__)
#include "busbw/device/detail/target_cuda.hpp"
#else
#include "busbw/device/detail/target_cpu.hpp"
#endif
