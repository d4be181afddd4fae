// The outputs of a program's last block.
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

}  // namespace chassis
