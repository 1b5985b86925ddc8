// Threads without OpenMP, which Apple's clang and compilers from the package index lack.
//
// Each calling thread has workers of its own, as with OpenMP. On busy cores nobody waits for a thread
// that cannot run: who waits spins for a bounded time and then sleeps, and the caller does itself
// what a worker has not begun.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace abele::own_threads {

constexpr int SPINS = 4000;  // some 50 microseconds

inline void pause() {
#if defined(__SSE2__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

inline void wait_while(const std::atomic<unsigned>& value, unsigned old) {
  for (int i = 0; i < SPINS; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  value.wait(old, std::memory_order_acquire);
}

// The workers of one calling thread, and what they do now. `size` threads work, the caller too.
struct Team {
  // What a worker has to do: a call, by its number, and the last one that somebody has begun.
  struct alignas(64) Turn {
    std::atomic<unsigned> number{0}, begun{0};

    bool begin(unsigned call) {
      unsigned last = begun.load(std::memory_order_relaxed);
      const bool is_new = static_cast<int>(call - last) > 0;  // a late worker asks for an old one
      return is_new && begun.compare_exchange_strong(last, call, std::memory_order_acq_rel);
    }
  };
  using Call = void (*)(const void* body, int thread, int size);

  std::vector<std::unique_ptr<Turn>> turns;  // of each worker
  Call call = nullptr;                       // null: end
  const void* body = nullptr;
  int size = 1;
  alignas(64) std::atomic<unsigned> working{0};
  alignas(64) std::atomic<unsigned> arrived{0};
  alignas(64) std::atomic<unsigned> meetings{0};

  void meet() {
    const unsigned meeting = meetings.load(std::memory_order_acquire);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < static_cast<unsigned>(size))
      return wait_while(meetings, meeting);
    arrived.store(0, std::memory_order_relaxed);
    meetings.fetch_add(1, std::memory_order_release);
    meetings.notify_all();
  }
};

inline thread_local Team* at_work = nullptr;  // the team in whose body this thread is

inline void work(std::shared_ptr<Team> team, Team::Turn* turn, int thread) {
  for (unsigned seen = 0;;) {
    wait_while(turn->number, seen);
    seen = turn->number.load(std::memory_order_acquire);
    if (!turn->begin(seen)) continue;
    if (team->call == nullptr) return;
    at_work = team.get();
    team->call(team->body, thread, team->size);
    if (team->working.fetch_sub(1, std::memory_order_acq_rel) == 1) team->working.notify_one();
  }
}

// Of one calling thread. A child process of fork has none of its workers, and starts others.
class Workers {
 public:
  ~Workers() {
    if (team_ == nullptr || forks_ != forks()) return;
    team_->call = nullptr;
    ++calls_;
    for (auto& turn : team_->turns) wake(*turn);
  }

  // Workers meet in the body if `together`: then each has to run.
  void run(int threads, bool together, Team::Call call, const void* body) {
    if (at_work != nullptr) return call(body, 0, 1);
    if (team_ == nullptr || forks_ != forks()) renew();
    Team& team = *team_;
    while (static_cast<int>(team.turns.size()) < threads - 1 && add()) {
    }
    team.size = std::min(threads, static_cast<int>(team.turns.size()) + 1);
    team.call = call, team.body = body;
    team.working.store(team.size - 1, std::memory_order_relaxed);
    ++calls_;
    for (int i = 0; i + 1 < team.size; ++i) wake(*team.turns[i]);
    at_work = &team;
    call(body, 0, team.size);
    for (int i = 0; !together && i + 1 < team.size; ++i)
      if (team.turns[i]->begin(calls_)) {
        call(body, i + 1, team.size);
        team.working.fetch_sub(1, std::memory_order_acq_rel);
      }
    at_work = nullptr;
    for (unsigned left; (left = team.working.load(std::memory_order_acquire)) != 0;)
      wait_while(team.working, left);
  }

 private:
  void wake(Team::Turn& turn) const {
    turn.number.store(calls_, std::memory_order_release);
    turn.number.notify_one();
  }

  static int& forks() {
    static int count = 0;
    static const int registered = pthread_atfork(nullptr, nullptr, [] { ++forks(); });
    static_cast<void>(registered);
    return count;
  }

  // The workers of a parent process, which a child lacks, keep the memory of their team.
  void renew() {
    forks_ = forks();
    team_ = std::make_shared<Team>();
  }

  bool add() {
    auto turn = std::make_unique<Team::Turn>();
    try {
      std::thread(work, team_, turn.get(), static_cast<int>(team_->turns.size()) + 1).detach();
    } catch (const std::system_error&) {
      return false;  // as many as the system allows
    }
    team_->turns.push_back(std::move(turn));
    return true;
  }

  std::shared_ptr<Team> team_;
  unsigned calls_ = 0;
  int forks_ = 0;
};

inline Workers& workers() {
  static thread_local Workers own;
  return own;
}

template <class Body>
void run(int threads, bool together, const Body& body) {
  const auto call = [](const void* what, int thread, int size) {
    (*static_cast<const Body*>(what))(thread, size);
  };
  workers().run(threads, together, call, &body);
}

// Within a body of `run`; alone otherwise.
inline void meet() {
  if (at_work != nullptr) at_work->meet();
}

}  // namespace abele::own_threads
