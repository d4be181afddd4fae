// Detects processors that multiply bf16, in tiles (AMX) or in vectors (AVX512-BF16), and describes the layout of the
// tiles. Intel's Intrinsics Guide documents the instructions; Linux' Documentation/arch/x86/xstate.rst documents the
// permission to use AMX.
#pragma once

#include <cstdint>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "chassis/namespace.hpp"

CHASSIS_SDK_BEGIN

// For _tile_loadconfig: tiles 0 to 7 have 16 rows of 64 bytes each.
struct alignas(64) AmxTileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// [any] True if the processor has AMX for bf16 and the kernel allows this process to use its registers. Asks the kernel
// at each call.
inline bool has_amx_bf16() noexcept {
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned kTiles = 1u << 24, kBf16 = 1u << 22;  // of EDX
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kTiles) == 0 || (d & kBf16) == 0) return false;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

// [any] True if the processor has AVX512-BF16; for_best_isa() checks that it has AVX-512.
inline bool has_avx512_bf16() noexcept {
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned kBf16 = 1u << 5;  // of EAX
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & kBf16) != 0;
#else
  return false;
#endif
}

CHASSIS_SDK_END
