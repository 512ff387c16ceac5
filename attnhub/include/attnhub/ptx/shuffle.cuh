// Exchange within a warp, of values of 4 or 8 bytes. Every lane of the mask takes part.
#pragma once

#include "attnhub/common/types.cuh"

namespace attnhub::ptx {

constexpr u32 kFullWarp = 0xffffffffu;

namespace detail {

enum class Shuffle { kIndex, kXor, kUp, kDown };

template <Shuffle kKind>
ATTNHUB_DEVICE u32 shuffle_word(u32 value, int operand, int width, u32 mask) {
#ifdef ATTNHUB_EMULATOR
  return emulator::shuffle(int(kKind), value, operand, width, mask);
#else
  if constexpr (kKind == Shuffle::kIndex) {
    return __shfl_sync(mask, value, operand, width);
  } else if constexpr (kKind == Shuffle::kXor) {
    return __shfl_xor_sync(mask, value, operand, width);
  } else if constexpr (kKind == Shuffle::kUp) {
    return __shfl_up_sync(mask, value, operand, width);
  } else {
    return __shfl_down_sync(mask, value, operand, width);
  }
#endif
}

template <Shuffle kKind, class T>
ATTNHUB_DEVICE T shuffle(T value, int operand, int width, u32 mask) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
  if constexpr (sizeof(T) == 4) {
    return bit_cast<T>(shuffle_word<kKind>(bit_cast<u32>(value), operand, width, mask));
  } else {
    auto words = bit_cast<Vec<u32, 2>>(value);
    words[0] = shuffle_word<kKind>(words[0], operand, width, mask);
    words[1] = shuffle_word<kKind>(words[1], operand, width, mask);
    return bit_cast<T>(words);
  }
}

}  // namespace detail

// The value of lane `lane` of each group of `width` lanes.
template <class T>
ATTNHUB_DEVICE T shuffle(T value, int lane, int width = 32, u32 mask = kFullWarp) {
  return detail::shuffle<detail::Shuffle::kIndex>(value, lane, width, mask);
}

// The value of lane (own ^ bits).
template <class T>
ATTNHUB_DEVICE T shuffle_xor(T value, int bits, int width = 32, u32 mask = kFullWarp) {
  return detail::shuffle<detail::Shuffle::kXor>(value, bits, width, mask);
}

// The value of the lane `delta` below, or one's own if the group has none.
template <class T>
ATTNHUB_DEVICE T shuffle_up(T value, int delta, int width = 32, u32 mask = kFullWarp) {
  return detail::shuffle<detail::Shuffle::kUp>(value, delta, width, mask);
}

// The value of the lane `delta` above, or one's own if the group has none.
template <class T>
ATTNHUB_DEVICE T shuffle_down(T value, int delta, int width = 32, u32 mask = kFullWarp) {
  return detail::shuffle<detail::Shuffle::kDown>(value, delta, width, mask);
}

// Bit l: whether the predicate of lane l holds.
ATTNHUB_DEVICE u32 ballot(bool predicate, u32 mask = kFullWarp) {
#ifdef ATTNHUB_EMULATOR
  return emulator::ballot(predicate, mask);
#else
  return __ballot_sync(mask, predicate);
#endif
}

// The lowest lane of a ballot that is not 0.
ATTNHUB_DEVICE int lowest_lane(u32 lanes) {
#ifdef ATTNHUB_EMULATOR
  return __builtin_ctz(lanes);
#else
  return __ffs(lanes) - 1;
#endif
}

// Whether the predicate of any lane holds.
ATTNHUB_DEVICE bool any(bool predicate, u32 mask = kFullWarp) {
#ifdef ATTNHUB_EMULATOR
  return emulator::ballot(predicate, mask) != 0;
#else
  return __any_sync(mask, predicate) != 0;
#endif
}

}  // namespace attnhub::ptx
