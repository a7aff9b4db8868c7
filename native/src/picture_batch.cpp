// Batches of pictures in threads of the process.
//
// Threads take the pictures of a batch one after the other. The threads of the process serve batches in the order of
// their creation, at most `threads` of them one batch, and sleep when there is none. A caller that waits for the result
// decodes in the place of a thread that has not come.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <new>
#include <string>
#include <thread>

#include "feedline/pictures.h"
#include "picture_ops.h"

namespace feedline {

namespace {

constexpr int kArity[] = {0, 4, 3, 2, 6, 5};
constexpr std::size_t kMaxThreads = 256;
constexpr const char kNoMemory[] = "out of memory";  // short enough that a string of it does not allocate

int to_int(double number) { return static_cast<int>(number); }

// One thread's memory, which is reused from picture to picture, unless one was much larger than usual.
struct Scratch {
    Pixels a, b;

    void forget_large() {
        for (Pixels* pixels : {&a, &b})
            if (pixels->capacity() > kMaxIdleBytes) *pixels = Pixels();
    }

  private:
    static constexpr std::size_t kMaxIdleBytes = std::size_t{16} << 20;
};

std::string size_text(std::int64_t width, std::int64_t height) {
    return std::to_string(width) + " x " + std::to_string(height);
}

std::size_t result_bytes(const PictureBatchOptions& options) {
    const std::size_t values = options.color == PictureColor::grey ? 1 : 3;
    return std::size_t(options.width) * std::size_t(options.height) * values * (options.floats ? 4 : 1);
}

// The decoding of one picture: its pixels are in `now`, and the next operation writes to `next`.
class PictureJob {
  public:
    PictureJob(const PictureBatchOptions& options, std::size_t i, Scratch& scratch)
        : options_(options),
          numbers_(options.params + i * options.numbers),
          result_(static_cast<std::byte*>(options.out) + i * result_bytes(options)),
          now_(&scratch.a),
          next_(&scratch.b) {}

    std::string run(std::size_t i) {
        const std::string fault = load(i);
        if (!fault.empty()) return fault;
        while (!written_) {
            if (ends_at(now_->width, now_->height)) {
                PictureResult result = last();
                for (int y = 0; y < now_->height; ++y) result.take(y, now_->row(y));
            } else if (at_ == options_.kinds.size()) {
                return "its steps lead to " + size_text(now_->width, now_->height) + " pixels, not to " +
                       size_text(options_.width, options_.height);
            } else {
                const std::string step_fault = step();
                if (!step_fault.empty()) return step_fault;
            }
        }
        return "";
    }

  private:
    void swap() { std::swap(now_, next_); }

    PictureOp kind() const { return static_cast<PictureOp>(options_.kinds[at_]); }

    // Goes to the next operation, and returns the numbers of this one.
    const double* take() {
        const double* numbers = numbers_;
        numbers_ += kArity[options_.kinds[at_++]];
        return numbers;
    }

    // Whether a picture of this size is the result, or its mirror image. Then its rows go there as they come.
    bool ends_at(int width, int height) const {
        const std::size_t remaining = options_.kinds.size() - at_;
        return width == options_.width && height == options_.height &&
               (remaining == 0 || (remaining == 1 && kind() == PictureOp::flip));
    }

    PictureResult last() {
        static constexpr double kNoFlip[2] = {0, 0};
        const double* flip = at_ < options_.kinds.size() ? take() : kNoFlip;
        written_ = true;
        return PictureResult(options_, result_, flip[0] != 0, flip[1] != 0);
    }

    std::string load(std::size_t i) {
        const int channels = options_.color == PictureColor::grey ? 1 : 3;
        if (!options_.raw.empty() && options_.raw[i].data != nullptr) {
            const RawPicture& raw = options_.raw[i];
            now_->reshape(raw.width, raw.height, channels);
            std::memcpy(now_->row(0), raw.data, now_->size());
            return "";
        }
        const std::uint8_t* data = options_.data + options_.bounds[i];
        const std::size_t n = static_cast<std::size_t>(options_.bounds[i + 1] - options_.bounds[i]);
        const PictureHeader header = read_picture_header(data, n);
        if (header.format != static_cast<std::int32_t>(PictureFormat::jpeg) || header.width == 0)
            return "expected a JPEG with a whole header";
        if (std::int64_t(header.width) * header.height > options_.max_pixels)
            return "expected at most " + std::to_string(options_.max_pixels) + " pixels, got " +
                   size_text(header.width, header.height);
        const int orientation = options_.upright ? header.orientation : 1;
        const bool turned = orientation >= 5;
        Region region{0, 0, turned ? header.height : header.width, turned ? header.width : header.height};
        if (!options_.kinds.empty() && kind() == PictureOp::crop) {
            const Region all = region;
            const double* numbers = take();
            region = {to_int(numbers[0]), to_int(numbers[1]), to_int(numbers[2]), to_int(numbers[3])};
            if (!inside(region, all.width, all.height)) return outside(region, all.width, all.height);
        }
        const int shrink = shrinks(region);
        const Region stored = stored_region(region, orientation, header.width, header.height);
        if (shrink > 1) return decode_smaller(data, n, stored, shrink, orientation);
        if (orientation == 1 && ends_at(region.width, region.height)) {
            PictureResult result = last();
            return turn(decode_jpeg(data, n, options_.color, stored, 1, *now_, true, &result), 1);
        }
        const bool loose = orientation != 1 || resizes(region.width, region.height);
        return turn(decode_jpeg(data, n, options_.color, stored, 1, *now_, loose), orientation);
    }

    // Whether the next operation changes the size, and so copies.
    bool resizes(int width, int height) const {
        return at_ < options_.kinds.size() && kind() == PictureOp::resize &&
               (to_int(numbers_[0]) != width || to_int(numbers_[1]) != height);
    }

    // The factor by which the decoder may shrink a region that is resized next.
    int shrinks(Region region) const {
        if (!options_.shrink || at_ >= options_.kinds.size() || kind() != PictureOp::resize) return 1;
        if (static_cast<PictureFilter>(to_int(numbers_[2])) != PictureFilter::triangle) return 1;
        if (to_int(numbers_[0]) < 1 || to_int(numbers_[1]) < 1) return 1;
        int factor = 1;
        while (factor < 8 && region.width >= 2.0 * factor * numbers_[0] && region.height >= 2.0 * factor * numbers_[1])
            factor *= 2;
        return factor;
    }

    std::string turn(std::string fault, int orientation) {
        if (!fault.empty()) return "expected a whole JPEG: " + fault;
        if (orientation == 1) return "";
        turn_upright(*now_, orientation, *next_);
        swap();
        return "";
    }

    // Decodes at 1/shrink, and resizes the region at that scale, a box that may have fractions.
    std::string decode_smaller(const std::uint8_t* data, std::size_t n, Region stored, int shrink, int orientation) {
        const Region rounded{stored.x / shrink, stored.y / shrink,
                             (stored.x + stored.width + shrink - 1) / shrink - stored.x / shrink,
                             (stored.y + stored.height + shrink - 1) / shrink - stored.y / shrink};
        const std::string fault = decode_jpeg(data, n, options_.color, rounded, shrink, *now_, true);
        if (!fault.empty()) return "expected a whole JPEG: " + fault;
        const bool turned = orientation >= 5;
        const double *numbers = take(), over = 1.0 / shrink;
        const double x0 = stored.x * over - rounded.x, y0 = stored.y * over - rounded.y;
        const int width = to_int(numbers[turned ? 1 : 0]), height = to_int(numbers[turned ? 0 : 1]);
        next_->reshape(width, height, now_->channels);
        resize_pixels(*now_, x0, y0, x0 + stored.width * over, y0 + stored.height * over, width, height,
                      PictureFilter::triangle, next_->row(0));
        swap();
        return turn("", orientation);
    }

    static bool inside(Region r, int width, int height) {
        return r.x >= 0 && r.y >= 0 && r.width >= 1 && r.height >= 1 && r.x <= width - r.width &&
               r.y <= height - r.height;
    }

    static std::string outside(Region r, int width, int height) {
        return "expected a crop inside of " + size_text(width, height) + " pixels, got " +
               size_text(r.width, r.height) + " at (" + std::to_string(r.x) + ", " + std::to_string(r.y) + ")";
    }

    std::string step() {
        const PictureOp what = kind();
        const double* numbers = take();
        switch (what) {
            case PictureOp::crop: {
                const Region r{to_int(numbers[0]), to_int(numbers[1]), to_int(numbers[2]), to_int(numbers[3])};
                if (!inside(r, now_->width, now_->height)) return outside(r, now_->width, now_->height);
                if (r.width == now_->width && r.height == now_->height) return "";
                crop_pixels(*now_, r, *next_);
                swap();
                return "";
            }
            case PictureOp::resize: {
                const int width = to_int(numbers[0]), height = to_int(numbers[1]);
                if (width < 1 || height < 1) return "expected a size of at least 1 x 1, got " + size_text(width, height);
                if (std::int64_t(width) * height > options_.max_pixels)
                    return "expected at most " + std::to_string(options_.max_pixels) + " pixels, got " +
                           size_text(width, height);
                if (width == now_->width && height == now_->height) return "";
                const auto filter = static_cast<PictureFilter>(to_int(numbers[2]));
                if (ends_at(width, height)) {
                    PictureResult result = last();
                    resize_pixels(*now_, 0, 0, now_->width, now_->height, width, height, filter, result.unchanged(),
                                  &result);
                    return "";
                }
                next_->reshape(width, height, now_->channels);
                resize_pixels(*now_, 0, 0, now_->width, now_->height, width, height, filter, next_->row(0));
                swap();
                return "";
            }
            case PictureOp::flip:
                if (numbers[0] == 0 && numbers[1] == 0) return "";
                flip_pixels(*now_, numbers[0] != 0, numbers[1] != 0, *next_);
                swap();
                return "";
            case PictureOp::pad: {
                const int left = to_int(numbers[0]), top = to_int(numbers[1]), right = to_int(numbers[2]),
                          bottom = to_int(numbers[3]);
                if (left < 0 || top < 0 || right < 0 || bottom < 0) return "expected borders of at least 0 pixels";
                const std::int64_t width = std::int64_t(now_->width) + left + right;
                const std::int64_t height = std::int64_t(now_->height) + top + bottom;
                if (width > options_.max_pixels / height)
                    return "expected at most " + std::to_string(options_.max_pixels) + " pixels, got " +
                           size_text(width, height);
                pad_pixels(*now_, left, top, right, bottom, static_cast<PictureBorder>(to_int(numbers[4])),
                           static_cast<std::uint8_t>(numbers[5]), *next_);
                swap();
                return "";
            }
            case PictureOp::jitter:
                jitter_pixels(*now_, numbers, options_.color == PictureColor::bgr);
                return "";
        }
        return "";
    }

    const PictureBatchOptions& options_;
    const double* numbers_;
    void* const result_;
    bool written_ = false;  // whether the result is complete
    std::size_t at_ = 0;
    Pixels *now_, *next_;
};

}  // namespace

int picture_op_arity(std::uint8_t kind) { return kind < sizeof kArity / sizeof *kArity ? kArity[kind] : 0; }

struct PictureBatch::State {
    explicit State(PictureBatchOptions batch) : options(std::move(batch)), pid(getpid()) { faults.reserve(options.n); }

    const PictureBatchOptions options;
    const pid_t pid;
    std::atomic<std::size_t> next{0};  // the first picture not taken; n or more once all are taken
    std::mutex mutex;                  // guards all below
    std::condition_variable progress;
    int working = 0;  // threads that take pictures
    double seconds = 0;
    std::vector<std::pair<std::size_t, std::string>> faults;

    bool taken() const { return next.load(std::memory_order_relaxed) >= options.n; }

    void take_all() {
        static thread_local Scratch scratch;
        const auto began = std::chrono::steady_clock::now();
        for (;;) {
            const std::size_t i = next.fetch_add(1, std::memory_order_relaxed);
            if (i >= options.n) break;
            std::string fault;
            try {
                fault = PictureJob(options, i, scratch).run(i);
            } catch (const std::exception&) {  // bad_alloc; length_error, of a vector
                fault = kNoMemory;
            }
            if (fault.empty()) continue;
            const std::size_t each = result_bytes(options);
            std::memset(static_cast<std::byte*>(options.out) + i * each, 0, each);
            const std::lock_guard lock(mutex);
            faults.emplace_back(i, std::move(fault));  // room for all is reserved
        }
        scratch.forget_large();
        const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - began;
        const std::lock_guard lock(mutex);
        seconds += spent.count();
    }
};

namespace {

// The threads of this process that work on batches.
class PicturePool {
  public:
    static PicturePool& of_this_process() {
        struct Owned {
            pid_t pid;
            PicturePool pool;
        };
        static std::atomic<Owned*> current{nullptr};
        Owned* owned = current.load(std::memory_order_acquire);
        while (owned == nullptr || owned->pid != getpid()) {
            // The parent's is left alone: its locks may be held by threads that do not exist here.
            Owned* fresh = new Owned{getpid(), {}};
            if (current.compare_exchange_strong(owned, fresh, std::memory_order_acq_rel)) return fresh->pool;
            delete fresh;
        }
        return owned->pool;
    }

    void start(std::shared_ptr<PictureBatch::State> batch) {
        {
            const std::lock_guard lock(mutex_);
            const std::size_t wanted = std::min<std::size_t>(std::size_t(batch->options.threads), kMaxThreads);
            while (threads_ < wanted && start_thread()) ++threads_;
            if (threads_ == 0) return;  // the caller of finish() does the work
            queue_.push_back(std::move(batch));
        }
        wake_.notify_all();
    }

  private:
    bool start_thread() {
        // A signal taken by such a thread would not interrupt the call of another thread that waits for it.
        sigset_t all, before;
        sigfillset(&all);
        for (const int fault : {SIGBUS, SIGSEGV, SIGFPE, SIGILL}) sigdelset(&all, fault);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        bool started = true;
        try {
            std::thread([this] { run(); }).detach();  // the pool is never destroyed
        } catch (const std::exception&) {  // system_error, or bad_alloc, after which signals must be restored, too
            started = false;
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return started;
    }

    // The first batch that has pictures left and takes another thread.
    std::shared_ptr<PictureBatch::State> first() {
        for (std::size_t k = 0; k < queue_.size();) {
            const auto& batch = queue_[k];
            if (batch->taken()) {
                queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(k));
                continue;
            }
            const std::lock_guard lock(batch->mutex);
            if (batch->working < batch->options.threads) {
                ++batch->working;
                return batch;
            }
            ++k;
        }
        return nullptr;
    }

    void run() {
        std::unique_lock lock(mutex_);
        for (;;) {
            std::shared_ptr<PictureBatch::State> batch;
            wake_.wait(lock, [&] { return (batch = first()) != nullptr; });
            lock.unlock();
            batch->take_all();
            {
                const std::lock_guard batch_lock(batch->mutex);
                --batch->working;
            }
            batch->progress.notify_all();
            batch.reset();
            lock.lock();
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<std::shared_ptr<PictureBatch::State>> queue_;
    std::size_t threads_ = 0;
};

}  // namespace

PictureBatch::PictureBatch(PictureBatchOptions options) : state_(std::make_shared<State>(std::move(options))) {
    if (state_->options.n != 0) PicturePool::of_this_process().start(state_);
}

PictureBatch::~PictureBatch() {
    State& state = *state_;
    if (state.pid != getpid()) {
        // No thread of this process works on it. It is never destroyed, as the parent's threads may have waited on its
        // condition variable.
        new std::shared_ptr<State>(std::move(state_));
        return;
    }
    state.next.store(state.options.n, std::memory_order_relaxed);
    std::unique_lock lock(state.mutex);
    state.progress.wait(lock, [&] { return state.working == 0; });
}

bool PictureBatch::done() const {
    State& state = *state_;
    if (state.pid != getpid() || !state.taken()) return false;
    const std::lock_guard lock(state.mutex);
    return state.working == 0;
}

double PictureBatch::seconds() const {
    if (state_->pid != getpid()) return 0;
    const std::lock_guard lock(state_->mutex);
    return state_->seconds;
}

std::vector<std::pair<std::size_t, std::string>> PictureBatch::finish() {
    if (state_->pid != getpid()) {
        // The parent's locks may be held forever, and its threads do not exist here.
        const auto fresh = std::make_shared<State>(state_->options);
        new std::shared_ptr<State>(std::move(state_));  // never destroyed
        state_ = fresh;
    }
    State& state = *state_;
    std::unique_lock lock(state.mutex);
    if (state.working < state.options.threads) {
        ++state.working;
        lock.unlock();
        state.take_all();
        lock.lock();
        --state.working;
        state.progress.notify_all();  // another thread may wait for the same result
    }
    state.progress.wait(lock, [&] { return state.working == 0 && state.taken(); });
    std::sort(state.faults.begin(), state.faults.end());
    return state.faults;
}

}  // namespace feedline
