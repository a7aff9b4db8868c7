#include "feedline/parquet.h"

#include <limits>

namespace feedline {

namespace {

// The header does not end within the given bytes.
struct TooShort {
    std::size_t at;
};

// Deeper than any structure of the format, and shallow enough for any stack.
constexpr int kDepth = 24;

// Types of the compact protocol. A bool that is a field has no bytes: its type is its value.
enum Type : unsigned { kStop, kTrue, kFalse, kI8, kI16, kI32, kI64, kDouble, kBinary, kList, kSet, kMap, kStruct, kUuid };

class Reader {
public:
    Reader(const std::uint8_t* bytes, std::size_t n) : begin_(bytes), p_(bytes), end_(bytes + n) {}

    std::size_t at() const { return static_cast<std::size_t>(p_ - begin_); }

    [[noreturn]] void fail(const std::string& what) const { throw ParquetError(what, at()); }

    std::uint8_t byte() {
        need(1);
        return *p_++;
    }

    void pass(std::uint64_t n) {
        need(n);
        p_ += n;
    }

    std::uint64_t varint() {
        std::uint64_t value = 0;
        for (unsigned shift = 0; shift < 64; shift += 7) {
            const std::uint8_t b = byte();
            value |= static_cast<std::uint64_t>(b & 0x7F) << shift;
            if (b < 0x80) return value;
        }
        fail("a number of more than 64 bits");
    }

    std::int64_t zigzag() {
        const std::uint64_t n = varint();
        return static_cast<std::int64_t>((n >> 1) ^ (~(n & 1) + 1));
    }

    // Reads the head of a field, and returns its type, or kStop. `id` is the number of the field before, and becomes
    // this field's number.
    unsigned field(std::int64_t& id) {
        const std::uint8_t head = byte();
        const unsigned type = head & 0x0F;
        if (type == kStop) return kStop;
        if (type > kUuid) fail("a field of an unknown type");
        id = head >> 4 ? id + (head >> 4) : zigzag();
        if (id < 0 || id > std::numeric_limits<std::int16_t>::max()) fail("a field with an impossible number");
        return type;
    }

    // Reads the head of a list, and returns the number of its items. Each item has at least one byte.
    std::size_t list(unsigned& type) {
        const std::uint8_t head = byte();
        type = head & 0x0F;
        const std::uint64_t count = (head >> 4) == 15 ? varint() : head >> 4;
        need(count);
        // Some writers give no type to lists without items.
        if ((type == kStop && count > 0) || type > kUuid) fail("a list of items of an unknown type");
        return static_cast<std::size_t>(count);
    }

    void skip(unsigned type, int depth) {
        if (depth == 0) fail("structures nested too deep");
        switch (type) {
            case kTrue:
            case kFalse: return;
            case kI8: return pass(1);
            case kI16:
            case kI32:
            case kI64: varint(); return;
            case kDouble: return pass(8);
            case kUuid: return pass(16);
            case kBinary: return pass(varint());
            case kList:
            case kSet: {
                unsigned items;
                for (std::size_t n = list(items); n > 0; --n) item(items, depth - 1);
                return;
            }
            case kMap: {
                const std::uint64_t n = varint();
                if (n == 0) return;
                need(n);
                const std::uint8_t types = byte();
                for (std::uint64_t i = 0; i < n; ++i) item(types >> 4, depth - 1), item(types & 0x0F, depth - 1);
                return;
            }
            case kStruct: {
                std::int64_t id = 0;
                while (const unsigned inner = field(id)) skip(inner, depth - 1);
                return;
            }
            default: fail("a value of an unknown type");
        }
    }

private:
    std::uint64_t remaining() const { return static_cast<std::uint64_t>(end_ - p_); }

    void need(std::uint64_t n) {
        if (n > remaining()) throw TooShort{at()};
    }

    // Skips an item of a list or map, where a bool is a byte.
    void item(unsigned type, int depth) {
        if (type == kTrue || type == kFalse) return pass(1);
        skip(type, depth);
    }

    const std::uint8_t* begin_;
    const std::uint8_t* p_;
    const std::uint8_t* end_;
};

// Calls visit(id, type) for each field of a structure, and skips the field if it returns false.
template <class Visit>
void structure(Reader& in, Visit visit) {
    std::int64_t id = 0;
    std::uint32_t seen = 0;
    while (const unsigned type = in.field(id)) {
        if (id < 32) {
            const std::uint32_t bit = std::uint32_t{1} << id;
            if (seen & bit) in.fail("field " + std::to_string(id) + " of a structure twice");
            seen |= bit;
        }
        if (!visit(id, type)) in.skip(type, kDepth);
    }
}

void expect(const Reader& in, unsigned type, unsigned expected, const char* name) {
    if (type != expected) in.fail(std::string("a wrong type for `") + name + "`");
}

// A size or a count.
void count_into(Reader& in, unsigned type, unsigned expected, const char* name, std::int64_t& value) {
    expect(in, type, expected, name);
    value = in.zigzag();
    if (value < 0) in.fail(std::string("a negative `") + name + "`");
    if (expected == kI32 && value > std::numeric_limits<std::int32_t>::max())
        in.fail(std::string("more than 32 bits in `") + name + "`");
}

void required(const Reader& in, std::int64_t value, const char* name) {
    if (value < 0) in.fail(std::string("no `") + name + "`");
}

// The number of nulls in statistics, or -1.
std::int64_t null_count(Reader& in) {
    std::int64_t nulls = -1;
    structure(in, [&](std::int64_t id, unsigned type) {
        if (id != 3 || type != kI64) return false;
        nulls = in.zigzag();
        return true;
    });
    return nulls;
}

template <class Item>
void structures(Reader& in, unsigned type, const char* name, Item item) {
    expect(in, type, kList, name);
    unsigned items;
    std::size_t n = in.list(items);
    if (n > 0) expect(in, items, kStruct, name);
    for (; n > 0; --n) item();
}

ParquetColumn column_chunk(Reader& in) {
    ParquetColumn column{-1, -1, -1, -1, -1};
    std::int64_t data = -1, dictionary = -1;
    structure(in, [&](std::int64_t id, unsigned type) {
        if (id == 8 || id == 9) in.fail("an encrypted column");
        if (id != 3) return false;
        expect(in, type, kStruct, "meta_data");
        structure(in, [&](std::int64_t inner, unsigned kind) {
            switch (inner) {
                case 5: count_into(in, kind, kI64, "num_values", column.values); return true;
                case 6: count_into(in, kind, kI64, "total_uncompressed_size", column.uncompressed); return true;
                case 7: count_into(in, kind, kI64, "total_compressed_size", column.compressed); return true;
                case 9: count_into(in, kind, kI64, "data_page_offset", data); return true;
                case 11: count_into(in, kind, kI64, "dictionary_page_offset", dictionary); return true;
                case 12:
                    if (kind != kStruct) return false;
                    column.nulls = null_count(in);
                    return true;
                default: return false;
            }
        });
        return true;
    });
    required(in, column.values, "num_values");
    required(in, column.uncompressed, "total_uncompressed_size");
    required(in, column.compressed, "total_compressed_size");
    required(in, data, "data_page_offset");
    if (column.nulls < 0 || column.nulls > column.values) column.nulls = -1;
    // Some writers put 0 if there is no dictionary.
    column.begin = dictionary > 0 && dictionary < data ? dictionary : data;
    return column;
}

void row_group(Reader& in, ParquetFooter& footer) {
    std::int64_t rows = -1;
    const std::size_t before = footer.columns.size();
    structure(in, [&](std::int64_t id, unsigned type) {
        if (id == 1) {
            structures(in, type, "columns", [&] { footer.columns.push_back(column_chunk(in)); });
            return true;
        }
        if (id != 3) return false;
        count_into(in, type, kI64, "num_rows", rows);
        return true;
    });
    required(in, rows, "num_rows");
    const std::size_t width = footer.columns.size() - before;
    if (!footer.rows.empty() && width != footer.width) in.fail("row groups with different numbers of columns");
    footer.width = width;
    footer.rows.push_back(rows);
}

}  // namespace

ParquetFooter parse_parquet_footer(const std::uint8_t* bytes, std::size_t n) {
    ParquetFooter footer;
    Reader in(bytes, n);
    bool found = false;
    try {
        structure(in, [&](std::int64_t id, unsigned type) {
            if (id == 8) in.fail("an encrypted file");
            if (id != 4) return false;
            structures(in, type, "row_groups", [&] { row_group(in, footer); });
            found = true;
            return true;
        });
    } catch (const TooShort& end) {
        throw ParquetError("a structure longer than its bytes", end.at);
    }
    if (!found) in.fail("no `row_groups`");
    return footer;
}

bool parse_parquet_page(const std::uint8_t* bytes, std::size_t n, ParquetPage& page) {
    Reader in(bytes, n);
    std::int64_t type_of_page = -1, values = -1;
    page = {0, -1, -1, 0};
    const auto data_page = [&](unsigned type) {
        expect(in, type, kStruct, "data_page_header");
        structure(in, [&](std::int64_t id, unsigned kind) {
            if (id != 1) return false;
            count_into(in, kind, kI32, "num_values", values);
            return true;
        });
        return true;
    };
    try {
        structure(in, [&](std::int64_t id, unsigned type) {
            switch (id) {
                case 1: count_into(in, type, kI32, "type", type_of_page); return true;
                case 2: count_into(in, type, kI32, "uncompressed_page_size", page.uncompressed); return true;
                case 3: count_into(in, type, kI32, "compressed_page_size", page.compressed); return true;
                case 5:
                case 8: return data_page(type);
                default: return false;
            }
        });
    } catch (const TooShort&) {
        return false;
    }
    required(in, type_of_page, "type");
    required(in, page.uncompressed, "uncompressed_page_size");
    required(in, page.compressed, "compressed_page_size");
    if (type_of_page == 0 || type_of_page == 3) {
        required(in, values, "num_values");
        page.values = values;
    }
    page.header = in.at();
    return true;
}

}  // namespace feedline
