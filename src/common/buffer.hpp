// Memory for tiles. A vector of doubles that starts at any of the other offsets an allocator may give crosses a cache
// line with every store.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace upsweep {
namespace {

template <class T>
struct LineAligned {
  typedef T value_type;
  static constexpr std::align_val_t kLine{64};

  LineAligned() = default;
  template <class Other>
  LineAligned(const LineAligned<Other>&) {}
  T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kLine)); }
  void deallocate(T* p, std::size_t) { ::operator delete(p, kLine); }
  bool operator==(const LineAligned&) const { return true; }
};

template <class T>
using Buffer = std::vector<T, LineAligned<T>>;

}  // namespace
}  // namespace upsweep
