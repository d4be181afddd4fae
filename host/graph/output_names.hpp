// The outputs of a program's last block, and values of the host between blocks.
#pragma once

namespace chassis {

// Models give the first three, or the scores; the objective pass replaces them by some of the others.
inline constexpr char kHiddenOutput[] = "hidden";           // [B, T, H], what the head reads
inline constexpr char kLogitsOutput[] = "logits";           // [B, T, vocab]
inline constexpr char kAuxLossOutput[] = "aux_loss";        // [], a sum over tokens, added to their cross entropy
inline constexpr char kLossOutput[] = "loss";               // [] f32, the sum over the labels that are not ignored
inline constexpr char kTokenLogpsOutput[] = "token_logps";  // [B, T] f32: of the labels, 0 where they are ignored
inline constexpr char kTopLogpsOutput[] = "top_logps";      // [B, T, top_k] f32: of the teacher's tokens, 0 without one
inline constexpr char kScoresOutput[] = "scores";           // [B, T, labels] f32; a model may give them too

// Outputs that the router pass adds to blocks with experts, and which the host takes from training; see router_stats in
// chassis/op.h. Names of further routers of a block end in a number.
inline constexpr char kRouterPrefix[] = "router.";
inline constexpr char kRouterSumsOutput[] = "router.sums";        // [B, 2E+1] f32, on each rank of its own positions
inline constexpr char kRouterLargestOutput[] = "router.largest";  // [B] f32, likewise
// The value that blocks after a router pass on: the sums of all routers so far, or the sum of their losses.
inline constexpr char kRouterBalance[] = "router.balance";

}  // namespace chassis
