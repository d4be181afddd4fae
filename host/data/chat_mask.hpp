// Decides which bytes of a rendered conversation are trained: applies the rules of [data] to the spans of its messages.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "host/data/data_config.hpp"
#include "host/data/record.hpp"
#include "host/data/tokenizer.hpp"

namespace chassis {

struct ByteRange {
  uint64_t begin = 0, end = 0;
};

// The pieces of one message in the rendered text, in order and without gaps: each is trained or not. The last piece
// ends where the last leaf ends; the end-of-turn token follows it.
struct MessageMask {
  struct Piece {
    uint64_t begin = 0, end = 0;
    bool trained = false;
  };
  size_t message = 0;
  bool is_generation = false;  // from {% generation %}: the end of the turn is inside
  std::vector<Piece> pieces;

  bool any_trained() const;
};

// Masks of the messages that have a trained piece; with train_on_prompt, those that have an untrained one. Throws a
// config error without a position if the bytes of such a piece are not known.
std::vector<MessageMask> mask_messages(const ChatRecord& chat, const RenderedChat& rendered, const ChatConfig& config);

// True if a row needs spans under these rules. It needs none if all of it is trained.
bool needs_spans(const ChatRecord& chat, const ChatConfig& config);

// True for each id i whose bytes [begin[i], end[i]) lie wholly inside one of the ranges, which are in order and do not
// touch. Appends the indexes of ids that lie partly inside to `partly_inside`.
std::vector<bool> tokens_inside(const Encoding& encoding, const std::vector<ByteRange>& ranges,
                                std::vector<size_t>& partly_inside);
// Joins ranges that overlap or touch, after sorting them.
std::vector<ByteRange> joined(std::vector<ByteRange> ranges);

}  // namespace chassis
