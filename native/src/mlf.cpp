#include "feedline/mlf.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

namespace feedline {

namespace {

constexpr std::string_view kHeader = "#!MLF!#";
constexpr double kFrame = 100000.0;  // units of 100 ns
constexpr double kMinInterval = 99999.0;
constexpr double kMaxFrames = std::numeric_limits<std::int32_t>::max();

std::string_view without_return(std::string_view line) {
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    return line;
}

// Takes the next word off the line, and the blank after it. Returns false if none is left.
bool next_word(std::string_view& line, std::string_view& word) {
    if (line.data() == nullptr) return false;
    const std::size_t blank = line.find(' ');
    word = line.substr(0, blank);
    line = blank == std::string_view::npos ? std::string_view() : line.substr(blank + 1);
    return true;
}

bool parse_time(std::string_view word, double& value) {
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    return error == std::errc() && end == word.data() + word.size() && value >= 0 && std::isfinite(value);
}

struct Interval {
    std::uint32_t begin, end;  // frames
};

MlfError parse_interval(std::string_view& line, Interval& interval) {
    std::string_view first, second;
    double begin, end;
    if (!next_word(line, first) || !next_word(line, second)) return MlfError::too_few_words;
    if (!parse_time(first, begin) || !parse_time(second, end)) return MlfError::bad_time;
    if (end - begin >= kMinInterval) {
        begin = std::floor(begin / kFrame + 0.5);
        end = std::floor(end / kFrame + 0.5);
    }
    if (begin > kMaxFrames || end > kMaxFrames) return MlfError::bad_time;
    interval = {static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end)};
    return MlfError::none;
}

bool is_name(std::string_view line) { return line.size() >= 2 && line.front() == '"' && line.back() == '"'; }

}  // namespace

std::uint64_t name_key(std::string_view name) {
    if (name.substr(0, 2) == "*/") name.remove_prefix(2);
    name = name.substr(0, name.rfind('.'));
    // FNV-1a, and a finalizer that mixes all bits.
    std::uint64_t hash = 0xcbf29ce484222325U;
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
    hash = (hash ^ hash >> 33) * 0xff51afd7ed558ccdU;
    hash = (hash ^ hash >> 33) * 0xc4ceb9fe1a85ec53U;
    return hash ^ hash >> 33;
}

void MlfIndexer::feed(const std::uint8_t* block, std::size_t n, std::vector<MlfEntry>& out) {
    const char* at = reinterpret_cast<const char*>(block);
    const char* const end = at + n;
    while (at < end && error_ == MlfError::none) {
        const auto* newline = static_cast<const char*>(std::memchr(at, '\n', static_cast<std::size_t>(end - at)));
        if (newline == nullptr) {
            carry_.append(at, end);
            at_ += static_cast<std::size_t>(end - at);
            break;
        }
        const auto size = static_cast<std::size_t>(newline - at);
        const std::uint64_t begin = at_ - carry_.size();
        at_ += size + 1;
        if (carry_.empty()) {
            line({at, size}, begin, at_, out);
        } else {
            carry_.append(at, size);
            line(carry_, begin, at_, out);
            carry_.clear();
        }
        at = newline + 1;
    }
}

void MlfIndexer::finish(std::vector<MlfEntry>& out) {
    if (error_ != MlfError::none) return;
    if (!carry_.empty()) line(carry_, at_ - carry_.size(), at_, out);
    carry_.clear();
    if (error_ == MlfError::none && (inside_ || !header_)) {
        error_ = inside_ ? MlfError::cut : MlfError::no_header;
        error_byte_ = inside_ ? begin_ : 0;
    }
}

void MlfIndexer::line(std::string_view text, std::uint64_t begin, std::uint64_t end, std::vector<MlfEntry>& out) {
    text = without_return(text);
    const auto fail = [&](MlfError code) {
        error_ = code;
        error_byte_ = begin;
    };
    if (!inside_) {
        if (text.empty()) return;
        if (text == kHeader) {
            header_ = true;
        } else if (!header_) {
            fail(MlfError::no_header);
        } else if (!is_name(text)) {
            fail(MlfError::no_name);
        } else {
            inside_ = true;
            malformed_ = broken_ = false;
            frames_ = 0;
            begin_ = begin;
            key_ = name_key(text.substr(1, text.size() - 2));
        }
        return;
    }
    if (text != ".") {
        Interval interval{};
        if (parse_interval(text, interval) != MlfError::none) {
            malformed_ = true;
        } else {
            broken_ |= interval.begin != frames_ || interval.end < interval.begin;
            frames_ = interval.end;
        }
        return;
    }
    inside_ = false;
    if (end - begin_ > std::numeric_limits<std::uint32_t>::max()) {
        error_byte_ = begin_;
        error_ = MlfError::too_long;
        return;
    }
    if (broken_ && !malformed_ && drop_invalid_) {
        ++dropped_;
        return;
    }
    const bool valid = !broken_ && !malformed_;
    out.push_back({key_, begin_, static_cast<std::uint32_t>(end - begin_),
                   valid ? static_cast<std::uint32_t>(frames_) : 0});
}

MlfParser::MlfParser(std::vector<std::string> states, bool mapped, std::uint32_t classes)
    : names_(std::move(states)), mapped_(mapped), classes_(classes) {
    for (std::size_t i = 0; i < names_.size(); ++i) states_.emplace(names_[i], static_cast<std::uint32_t>(i));
}

MlfRuns MlfParser::parse(const std::uint8_t* text, const std::int64_t* begin, const std::uint32_t* size,
                         std::size_t n) const {
    MlfRuns runs;
    runs.offsets.reserve(n + 1);
    runs.offsets.push_back(0);
    for (std::size_t i = 0; i < n; ++i) {
        const auto runs_before = static_cast<std::size_t>(runs.offsets.back());
        std::size_t at = 0;
        const std::string_view lines(reinterpret_cast<const char*>(text) + begin[i], size[i]);
        const MlfError error = utterance(lines, runs, at);
        if (error != MlfError::none) {
            runs.frames.resize(runs_before);
            runs.classes.resize(runs_before);
            runs.faults.push_back(
                {begin[i] + static_cast<std::int64_t>(at), static_cast<std::int64_t>(i), static_cast<std::int32_t>(error)});
        }
        runs.offsets.push_back(static_cast<std::int64_t>(runs.frames.size()));
    }
    return runs;
}

MlfError MlfParser::utterance(std::string_view text, MlfRuns& runs, std::size_t& at) const {
    const auto next_line = [&](std::string_view& line) {
        if (at >= text.size()) return false;
        const std::size_t newline = text.find('\n', at);
        line = without_return(text.substr(at, newline == std::string_view::npos ? newline : newline - at));
        return true;
    };
    const auto skip_line = [&] {
        const std::size_t newline = text.find('\n', at);
        at = newline == std::string_view::npos ? text.size() : newline + 1;
    };
    std::string_view line, word;
    if (!next_line(line) || !is_name(line)) return MlfError::no_name;
    skip_line();
    std::uint32_t frames = 0;
    bool any = false;
    for (; next_line(line) && line != "."; skip_line()) {
        Interval interval{};
        if (const MlfError error = parse_interval(line, interval); error != MlfError::none) return error;
        if (interval.begin != frames || interval.end < interval.begin) return MlfError::not_contiguous;
        if (!next_word(line, word)) return MlfError::too_few_words;
        std::uint32_t number = 0;
        if (mapped_) {
            const auto state = states_.find(word);
            if (state == states_.end()) return MlfError::unknown_state;
            number = state->second;
        } else {
            std::string_view fifth;
            if (!next_word(line, word) || next_word(line, fifth)) return MlfError::too_few_words;
            const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
            if (error != std::errc() || end != word.data() + word.size()) return MlfError::bad_class;
        }
        if (number >= classes_) return MlfError::bad_class;
        if (interval.end > interval.begin) {
            runs.frames.push_back(interval.end - interval.begin);
            runs.classes.push_back(number);
        }
        frames = interval.end;
        any = true;
    }
    if (at >= text.size()) return MlfError::cut;
    return any && frames > 0 ? MlfError::none : MlfError::no_lines;
}

}  // namespace feedline
