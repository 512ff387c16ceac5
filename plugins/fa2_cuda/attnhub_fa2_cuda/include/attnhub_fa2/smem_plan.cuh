// The shared memory of a CTA.
#pragma once

#include "attnhub_fa2/query_tile.cuh"
#include "attnhub_fa2/tile_shape.cuh"

namespace attnhub::fa2 {

// What the mainloop reads.
template <class Shape>
struct Operands {
  // NOTE: the output of a whole tile goes where its queries were.
  static constexpr int kQueryBytes = Shape::TileQ::kBytes > Shape::TileOut::kBytes
                                         ? Shape::TileQ::kBytes
                                         : Shape::TileOut::kBytes;
  alignas(1024) unsigned char q[kQueryBytes];
  alignas(1024) unsigned char k[Shape::kStages][Shape::TileK::kBytes];
  alignas(1024) unsigned char v[Shape::kStages][Shape::TileV::kBytes];
};

// What each warp summed of a row, where warps share the keys.
template <class Shape>
struct Exchange {
  // NOTE: rows 4 floats longer than a head keep 8 rows of a fragment in different banks.
  static constexpr int kPitch = Shape::kDimVo + 4;
  static constexpr int kRows = Shape::kWarpsN == 1 ? 1 : Shape::kWarpsN * Shape::kBlockM;
  float out[kRows][kPitch];
  float max[kRows], sum[kRows];  // in natural units
};

template <class Shape>
struct SmemPlan {
  union {
    Operands<Shape> operands;
    Exchange<Shape> exchange;
  };
  TileRow rows[Shape::kBlockM];
  i32 is_last;  // this CTA brought the last piece of a tile
};

}  // namespace attnhub::fa2
