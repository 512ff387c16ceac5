// From what the warps summed to rows of the output, or of a partial result.
#pragma once

#include "attnhub_fa2/keys_epilogue.cuh"
#include "attnhub_fa2/rows_epilogue.cuh"

namespace attnhub::fa2 {

template <class Shape, class P>
ATTNHUB_DEVICE void finish_piece(const Destination<Shape, P>& to, Mainloop<Shape, P>& from) {
  if constexpr (Shape::kWarpsN == 1) {
    RowsEpilogue<Shape, P>(to, from).run();
  } else {
    KeysEpilogue<Shape, P>(to).run(from);
  }
}

}  // namespace attnhub::fa2
