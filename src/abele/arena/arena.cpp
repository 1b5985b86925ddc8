// Memory of torch's tensors at planned places, while a program runs.
//
// torch asks one allocator for the memory of every tensor. This one stands before it. In a thread
// in which a program with a plan runs, each tensor goes to the place that the plan has for the next
// one of its size. Whatever was not planned takes a gap, or memory elsewhere, so a plan that does
// not hold costs memory and nothing else.
//
// A slab is one piece of memory of the system; programs that run one after the other use the same.
//
// A thread may also have its allocations recorded: sizes, order, and what is freed again. A plan is
// made again from those of a program's first run, which knows what operators allocate inside.
//
// Large tensors that have no place, as results of calls, come from malloc in all threads, small ones
// from the allocator behind. That one calls posix_memalign, which before glibc 2.38 asks for more
// than it keeps: the hole that a tensor leaves does not fit the next one of its size, and a loop
// that keeps a result until it has a new one takes memory for three to seven of them, not two.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

// On Linux, torch is made with another C++ library, whose strings are other ones.
#if defined(_LIBCPP_VERSION) && defined(__linux__)
#error torch needs libstdc++, this compiler has libc++
#endif

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kOff = 4;  // tensors
constexpr size_t kSmall = size_t{1} << 20;  // up to here unplanned tensors take no gap
constexpr size_t kLarge = 4096;  // smaller tensors come from the C library, as torch asks it
constexpr size_t kPage = 4096;

struct Slab {
  char* base;
  size_t size;
  bool busy = false;
  bool retired = false;
  std::map<size_t, size_t> live;  // offset -> end
};

struct Place {
  int64_t offset;  // negative: not in the slab
  size_t turn;     // in the order in which tensors are made
};

struct Places {
  std::vector<Place> all;
  size_t next = 0;
};

struct Plan {
  std::unordered_map<size_t, Places> of_size;
  size_t total = 0;
  bool final = false;  // made from what the program has allocated
  bool busy = false;
};

struct Run {
  Plan* plan;
  Slab* slab;
  Run* outer;
  size_t turn = 0;    // of the tensor after the last planned one
  size_t misses = 0;  // tensors since then that were not planned
};

// Large allocations of a thread, in order.
struct Recording {
  struct Entry {
    int64_t bytes, begin, end;  // moments; end is -1 until it is freed
    void* address;
  };
  std::vector<Entry> entries;
  std::unordered_map<void*, size_t> live;  // address -> entry
  int64_t moment = 0;
  Recording* outer;
};

struct State {
  std::mutex mutex;
  std::map<char*, Slab*> slabs;  // by address
  std::vector<Plan*> plans;
  std::unordered_map<void*, void*> loose;  // large tensors without a place -> what malloc gave
  int64_t counts[3] = {0, 0, 0};  // at their place, in a gap, elsewhere
};

// Never destroyed: tensors may outlive everything else of the process.
State& state() {
  static State* const only = new State;
  return *only;
}

thread_local Run* running = nullptr;
thread_local Recording* recording = nullptr;
c10::Allocator* behind = nullptr;  // torch's own

void unmap(std::map<char*, Slab*>::iterator entry) {
  Slab* slab = entry->second;
  munmap(slab->base, slab->size);
  state().slabs.erase(entry);
  delete slab;
}

void unmap_if_unused(Slab* slab) {
  if (slab->retired && !slab->busy && slab->live.empty()) {
    unmap(state().slabs.find(slab->base));
  }
}

Slab* slab_of(void* pointer) {
  auto after = state().slabs.upper_bound(static_cast<char*>(pointer));
  if (after == state().slabs.begin()) return nullptr;
  Slab* slab = std::prev(after)->second;
  return pointer < slab->base + slab->size ? slab : nullptr;
}

// Aligned memory that leaves a hole of the size that the next such tensor asks for; null if there is
// none.
void* take_loose(size_t bytes) {
  void* given = std::malloc(bytes + kAlignment);
  if (given == nullptr) return nullptr;
  const uintptr_t end = reinterpret_cast<uintptr_t>(given) + kAlignment - 1;
  void* pointer = reinterpret_cast<void*>(end / kAlignment * kAlignment);
  c10::profiledCPUMemoryReporter().New(pointer, bytes);
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().loose.emplace(pointer, given);
  return pointer;
}

void record_taken(void* pointer, size_t bytes) {
  for (Recording* each = recording; each != nullptr; each = each->outer) {
    each->live[pointer] = each->entries.size();
    each->entries.push_back({static_cast<int64_t>(bytes), ++each->moment, -1, pointer});
  }
}

void record_freed(void* pointer) {
  for (Recording* each = recording; each != nullptr; each = each->outer) {
    auto entry = each->live.find(pointer);
    if (entry == each->live.end()) continue;
    each->entries[entry->second].end = each->moment;
    each->live.erase(entry);
  }
}

void release(void* pointer) {
  record_freed(pointer);
  void* given = nullptr;
  {
    const std::lock_guard<std::mutex> lock(state().mutex);
    auto loose = state().loose.find(pointer);
    if (loose != state().loose.end()) {
      given = loose->second;
      state().loose.erase(loose);
    }
    Slab* slab = given == nullptr ? slab_of(pointer) : nullptr;
    if (slab != nullptr) {
      slab->live.erase(static_cast<char*>(pointer) - slab->base);
      unmap_if_unused(slab);
      return;
    }
  }
  if (given != nullptr) {
    c10::profiledCPUMemoryReporter().Delete(pointer);
    std::free(given);
    return;
  }
  behind->raw_deleter()(pointer);
}

bool is_free(const Slab& slab, size_t offset, size_t size) {
  auto after = slab.live.upper_bound(offset);
  if (after != slab.live.end() && after->first < offset + size) return false;
  return after == slab.live.begin() || std::prev(after)->second <= offset;
}

// The smallest gap that is large enough; -1 if there is none.
int64_t gap(const Slab& slab, size_t size) {
  int64_t best = -1;
  size_t smallest = SIZE_MAX, begin = 0;
  auto consider = [&](size_t end) {
    if (end >= begin + size && end - begin < smallest) {
      smallest = end - begin;
      best = static_cast<int64_t>(begin);
    }
  };
  for (const auto& [offset, end] : slab.live) {
    consider(offset);
    begin = end;
  }
  consider(slab.size);
  return best;
}

// Operators also make tensors inside, which no plan has. So a place is only given to who comes
// about when it is due; how far off that may be grows until one is given.
const Place* due(Run& run, size_t bytes) {
  auto entry = run.plan->of_size.find(bytes);
  if (entry != run.plan->of_size.end()) {
    Places& places = entry->second;
    const size_t off = kOff + run.misses;
    while (places.next < places.all.size() && places.all[places.next].turn + off < run.turn) {
      ++places.next;
    }
    if (places.next < places.all.size() && places.all[places.next].turn <= run.turn + off) {
      const Place* place = &places.all[places.next++];
      run.turn = std::max(run.turn, place->turn + 1);
      run.misses = 0;
      return place;
    }
  }
  ++run.misses;
  return nullptr;
}

void* take(Run& run, size_t bytes) {
  const size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const std::lock_guard<std::mutex> lock(state().mutex);
  const Place* place = due(run, bytes);
  if (place != nullptr && place->offset < 0) return nullptr;
  const bool planned = place != nullptr && is_free(*run.slab, place->offset, size);
  int64_t offset = planned ? place->offset : -1;
  // Small ones would only be in the way of those that are planned.
  if (!planned && (place != nullptr || bytes > kSmall)) offset = gap(*run.slab, size);
  ++state().counts[planned ? 0 : offset >= 0 ? 1 : 2];
  if (offset < 0) return nullptr;
  run.slab->live.emplace(offset, offset + size);
  return run.slab->base + offset;
}

class Planned final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    Run* run = running;
    void* pointer = run != nullptr && bytes >= kLarge ? take(*run, bytes) : nullptr;
    if (pointer == nullptr && bytes >= kLarge) pointer = take_loose(bytes);
    if (pointer == nullptr) return behind->allocate(bytes);  // says so where there is none
    if (bytes >= kLarge) record_taken(pointer, bytes);
    return {pointer, pointer, &release, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t count) const override {
    std::memcpy(to, from, count);
  }
};

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    behind = c10::GetCPUAllocator();
    c10::SetCPUAllocator(new Planned, 255);
    // A child of a fork must not wait for a thread that it does not have.
    pthread_atfork([] { state().mutex.lock(); }, [] { state().mutex.unlock(); },
                   [] { state().mutex.unlock(); });
  });
}

// Bytes of a slab in which every program has room: whole pages.
size_t most() {
  size_t most = 0;
  for (const Plan* plan : state().plans) most = std::max(most, plan->total);
  return (most + kPage - 1) / kPage * kPage;
}

// The slabs that no plan needs any more go back to the system when their last tensor dies.
void retire() {
  const size_t needed = most();
  std::vector<Slab*> slabs;
  for (const auto& [base, slab] : state().slabs) slabs.push_back(slab);
  for (Slab* slab : slabs) {
    slab->retired = slab->retired || slab->size > needed;
    unmap_if_unused(slab);
  }
}

void* mapped(size_t size) {
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                    0);
  return base == MAP_FAILED ? nullptr : base;
}

// Before its first run a plan knows nothing of tensors that operators allocate inside, so a new slab
// has room for them behind. Pages that nobody touches are not memory of the process.
Slab* slab_for(const Plan& plan) {
  const size_t total = plan.total, spare = plan.final ? 0 : total;
  std::vector<Slab*> small;
  for (const auto& [base, slab] : state().slabs) {
    if (slab->busy || slab->retired) continue;
    if (slab->size >= total) return slab;
    small.push_back(slab);
  }
  for (Slab* slab : small) {
    slab->retired = true;
    unmap_if_unused(slab);
  }
  size_t size = 0;
  void* base = nullptr;
  for (const size_t each : {most() + spare, most(), total}) {  // another may be too large to run
    size = each;
    base = mapped(size);
    if (base != nullptr) break;
  }
  if (base == nullptr) return nullptr;
  Slab* slab = new Slab{static_cast<char*>(base), size};
  state().slabs.emplace(slab->base, slab);
  return slab;
}

}  // namespace

#define ABELE_API extern "C" __attribute__((visibility("default")))

// From now on torch asks this allocator, whether or not a program runs.
ABELE_API void abele_arena_install() { install(); }

// A plan of tensors, which has none yet.
ABELE_API void* abele_arena_plan() {
  Plan* plan = new Plan;
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().plans.push_back(plan);
  return plan;
}

// Have a plan know `count` tensors in the order in which they are made, and the bytes it needs;
// false, and nothing is changed, if its program runs.
ABELE_API bool abele_arena_set(
    void* given, int64_t count, const int64_t* sizes, const int64_t* offsets, int64_t total,
    bool final) {
  Plan* plan = static_cast<Plan*>(given);
  const std::lock_guard<std::mutex> lock(state().mutex);
  if (plan->busy) return false;
  plan->total = total;
  plan->final = final;
  plan->of_size.clear();
  for (int64_t index = 0; index < count; ++index) {
    plan->of_size[sizes[index]].all.push_back({offsets[index], static_cast<size_t>(index)});
  }
  retire();
  return true;
}

ABELE_API void abele_arena_drop(void* plan) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  auto& plans = state().plans;
  for (auto each = plans.begin(); each != plans.end(); ++each) {
    if (*each != plan) continue;
    plans.erase(each);
    delete static_cast<Plan*>(plan);
    break;
  }
  retire();
}

// From now on this thread runs the plan's program; null if that runs elsewhere, or without memory.
ABELE_API void* abele_arena_begin(void* given) {
  Plan* plan = static_cast<Plan*>(given);
  const std::lock_guard<std::mutex> lock(state().mutex);
  if (plan->busy) return nullptr;
  Slab* slab = slab_for(*plan);
  if (slab == nullptr) return nullptr;
  plan->busy = slab->busy = true;
  for (auto& [size, places] : plan->of_size) places.next = 0;
  running = new Run{plan, slab, running};
  return running;
}

ABELE_API void abele_arena_end(void* given) {
  Run* run = static_cast<Run*>(given);
  const std::lock_guard<std::mutex> lock(state().mutex);
  running = run->outer;
  run->plan->busy = run->slab->busy = false;
  unmap_if_unused(run->slab);
  delete run;
}

// From now on large allocations of this thread are recorded.
ABELE_API void* abele_arena_record() {
  Recording* made = new Recording;
  made->outer = recording;
  recording = made;
  return made;
}

// Stop; how many there were. Recordings of a thread end in the order opposite to their beginning.
ABELE_API int64_t abele_arena_recorded(void* given) {
  Recording* done = static_cast<Recording*>(given);
  recording = done->outer;
  return static_cast<int64_t>(done->entries.size());
}

// Of each allocation bytes, the moments of its beginning and its end, -1 for none, and its address;
// the recording is gone afterwards.
ABELE_API void abele_arena_entries(void* given, int64_t* rows) {
  Recording* done = static_cast<Recording*>(given);
  for (const Recording::Entry& each : done->entries) {
    *rows++ = each.bytes;
    *rows++ = each.begin;
    *rows++ = each.end;
    *rows++ = reinterpret_cast<int64_t>(each.address);
  }
  delete done;
}

// Return the memory of idle slabs between live tensors, such as results that are still compared, to
// the system; the next program that runs there maps it again.
ABELE_API void abele_arena_release() {
  const std::lock_guard<std::mutex> lock(state().mutex);
  const size_t page = sysconf(_SC_PAGESIZE);
  for (const auto& [base, slab] : state().slabs) {
    if (slab->busy) continue;
    size_t begin = 0;
    auto live = slab->live;
    live.emplace((slab->size + page - 1) / page * page, 0);
    for (const auto& [offset, end] : live) {
      const size_t last = offset / page * page;
      if (begin < last) madvise(base + begin, last - begin, MADV_DONTNEED);
      begin = (end + page - 1) / page * page;
    }
  }
}

// How many tensors went to their place (0), into a gap (1), elsewhere (2); bytes of
// all slabs (3).
ABELE_API int64_t abele_arena_count(int64_t which) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  if (which < 3) return state().counts[which];
  int64_t bytes = 0;
  for (const auto& [base, slab] : state().slabs) bytes += slab->size;
  return bytes;
}
