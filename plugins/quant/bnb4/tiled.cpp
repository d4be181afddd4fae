// Each thread computes a part of y. It packs a panel of the weight, then multiplies it by 32 rows of x at a time.
#include "tiled.hpp"

#include <algorithm>
#include <limits>

#include "chassis/amx.hpp"
#include "chassis/task.hpp"

namespace bnb4 {

using namespace chassis;

namespace {

constexpr int64_t kPanelElements = 768 << 10;  // 1.5 MiB of a second-level cache of 2 MiB
constexpr int64_t kPanelDepth = 2048;          // products that are summed before sums are stored
constexpr int64_t kLeftDepth = 256;            // with 32 rows and 32 columns, stays in the first-level cache
constexpr int64_t kStrip = 512;                // columns of a weight dequantized at a time, if it is not transposed

int64_t squares(int64_t count) { return (count + kSquare - 1) / kSquare; }

// The sizes of one thread's work.
struct TiledSizes {
  int64_t depth, width;  // of a panel
  int64_t num_depths;    // panels that are summed

  TiledSizes(int64_t all_depth, int64_t all_width) {
    num_depths = std::max<int64_t>(1, (all_depth + kPanelDepth - 1) / kPanelDepth);
    depth = std::max<int64_t>(1, (squares(all_depth) + num_depths - 1) / num_depths) * kSquare;
    const int64_t most = std::max<int64_t>(1, kPanelElements / depth / kSquare), own = squares(all_width);
    const int64_t panels = std::max<int64_t>(1, (own + most - 1) / most);
    width = std::max<int64_t>(1, (own + panels - 1) / panels) * kSquare;
  }
  int64_t right() const { return depth * width * 2; }
  int64_t left() const { return kSquare * depth * 2; }
  int64_t strip() const { return kSquare * (std::max(depth, kStrip) + kSquare) * 2; }
  int64_t sums(int64_t m) const { return (num_depths > 1 ? squares(m) : 1) * kSquare * width * 4; }
  int64_t bytes(int64_t m) const { return right() + left() + strip() + sums(m); }
};

// y is cut into `by_width` · `by_rows` parts of whole squares, chosen so that the costliest part of a product of many
// rows is cheap. A part dequantizes all that it multiplies, which takes as long as the products of kDequantizing
// squares of rows.
struct Shares {
  static constexpr int64_t kDequantizing = 4, kRows = 32;  // squares
  int64_t by_width = 1, by_rows = 1;
  int64_t width;

  Shares(int64_t num_threads, int64_t width) : width(squares(width)) {
    int64_t least = std::numeric_limits<int64_t>::max();
    for (int64_t w = 1; w <= std::max<int64_t>(1, std::min(num_threads, this->width)); ++w) {
      const int64_t r = std::clamp<int64_t>(num_threads / w, 1, kRows);
      const int64_t cost = ((this->width + w - 1) / w) * ((kRows + r - 1) / r + kDequantizing);
      if (cost < least) least = cost, by_width = w, by_rows = r;
    }
  }
  int64_t count() const { return by_width * by_rows; }
  int64_t widest() const { return (width + by_width - 1) / by_width * kSquare; }
};

// The start of part i of n.
int64_t cut(int64_t total, int64_t n, int64_t i) { return total * i / n * kSquare; }

class TiledPart {
 public:
  TiledPart(const Weight& weight, const TiledProduct& p, const TiledSizes& sizes, char* workspace)
      : w_(weight), p_(p), s_(sizes), t_(*tiles()) {
    right_ = reinterpret_cast<Bf16*>(workspace), workspace += s_.right();
    left_ = reinterpret_cast<Bf16*>(workspace), workspace += s_.left();
    strip_ = reinterpret_cast<Bf16*>(workspace), workspace += s_.strip();
    sums_ = reinterpret_cast<float*>(workspace);
    all_depth_ = p.back ? w_.rows() : w_.columns();
    all_width_ = p.back ? w_.columns() : w_.rows();
  }

  // Computes columns [begin, end) and rows [first, last) of y.
  void run(int64_t begin, int64_t end, int64_t first, int64_t last) {
    t_.begin();
    for (int64_t at = begin; at < end; at += s_.width)
      for (int64_t from = 0; from < all_depth_; from += s_.depth)
        multiply_panel(at, std::min(end, at + s_.width), from, std::min(all_depth_, from + s_.depth), first, last);
    t_.end();
  }

 private:
  void multiply_panel(int64_t begin, int64_t end, int64_t from, int64_t to, int64_t first, int64_t last) {
    const int64_t depth = squares(to - from) * kSquare, width = squares(end - begin) * kSquare;
    if (p_.back)
      pack_rows(begin, end, from, to);
    else
      pack_columns(begin, end, from, to);
    for (int64_t row = first; row < last; row += kSquare) {
      const int64_t rows = std::min(kSquare, last - row);
      float* const sums = sums_ + (s_.num_depths > 1 ? row - first : 0) * s_.width;
      t_.pack_left(p_.x + row * all_depth_ + from, all_depth_, rows, to - from, left_);
      for (int64_t d = 0; d < depth; d += kLeftDepth) {
        const int64_t some = std::min(kLeftDepth, depth - d);
        for (int64_t c = 0; c < width; c += kSquare)
          t_.multiply(left_ + d * kSquare, right_ + c * depth + d * kSquare, some, sums + c, s_.width,
                      from > 0 || d > 0);
      }
      if (to == all_depth_)
        t_.store(sums, s_.width, rows, end - begin, p_.bias == nullptr ? nullptr : p_.bias + begin, p_.add,
                 p_.y + row * all_width_ + begin, all_width_);
    }
  }

  // The rows of the weight are columns of the right factor.
  void pack_columns(int64_t begin, int64_t end, int64_t from, int64_t to) {
    const int64_t depth = squares(to - from) * kSquare, stride = depth + kSquare;
    for (int64_t n = begin; n < begin + squares(end - begin) * kSquare; n += 16) {
      for (int64_t r = 0; r < 16; ++r) {
        Bf16* const row = strip_ + r * stride;
        const int64_t count = n + r < end ? to - from : 0;
        w_.read((n + r) * w_.columns() + from, count, row);
        std::fill(row + count, row + depth, Bf16{0});
      }
      const int64_t square = (n - begin) / kSquare * kSquare;
      t_.pack_columns(strip_, stride, depth, (n - begin) / 16 % 2, right_ + square * depth);
    }
  }

  void pack_rows(int64_t begin, int64_t end, int64_t from, int64_t to) {
    const int64_t depth = squares(to - from) * kSquare;
    for (int64_t c = begin; c < end; c += kStrip) {
      const int64_t count = std::min(kStrip, end - c), columns = squares(count) * kSquare, stride = columns + kSquare;
      for (int64_t n = from; n < from + depth; n += kSquare) {
        for (int64_t r = 0; r < kSquare; ++r) {
          Bf16* const row = strip_ + r * stride;
          const int64_t own = n + r < to ? count : 0;
          w_.read((n + r) * w_.columns() + c, own, row);
          std::fill(row + own, row + columns, Bf16{0});
        }
        t_.pack_rows(strip_, stride, columns, depth * kSquare, right_ + (c - begin) * depth + (n - from) * kSquare);
      }
    }
  }

  const Weight& w_;
  const TiledProduct& p_;
  const TiledSizes& s_;
  const Tiles& t_;
  Bf16 *right_, *left_, *strip_;
  float* sums_;
  int64_t all_depth_, all_width_;
};

}  // namespace

const Tiles* tiles() {
  static const Tiles* const table =
      has_amx_bf16() ? for_best_isa([](auto isa) -> const Tiles* { return tiles(isa); }) : nullptr;
  return table;
}

int64_t tiled_bytes(int num_threads, int64_t m, int64_t rows, int64_t columns, bool back) {
  const int64_t depth = back ? rows : columns, width = back ? columns : rows;
  const Shares shares(num_threads, width);
  return shares.count() * TiledSizes(depth, shares.widest()).bytes(m);
}

void multiply_tiled(const Host& host, const Weight& weight, const TiledProduct& p, char* workspace) {
  const int64_t depth = p.back ? weight.rows() : weight.columns(), width = p.back ? weight.columns() : weight.rows();
  if (p.m == 0 || width == 0) return;
  const Shares shares(num_threads(host), width);
  const TiledSizes sizes(depth, shares.widest());
  parallel_for(host, shares.count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t column = i % shares.by_width, row = i / shares.by_width, rows = squares(p.m);
      const int64_t first = cut(rows, shares.by_rows, row), last = cut(rows, shares.by_rows, row + 1);
      if (first == last) continue;
      TiledPart(weight, p, sizes, workspace + i * sizes.bytes(p.m))
          .run(cut(shares.width, shares.by_width, column),
               std::min(width, cut(shares.width, shares.by_width, column + 1)), first, std::min(p.m, last));
    }
  });
}

}  // namespace bnb4
