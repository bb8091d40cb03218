// Chooses tokens for deferred rows. Masks and penalties are copied in a second stream while the device computes the
// logits; the choice is queued after both.
#include "model/device/model_deferred.h"

namespace nibble {

Status DeviceModel::choose_deferred(std::span<const int64_t> rows, std::span<const TokenRequest> requests) const {
    if (under_way() != 1) return fail("{} steps are under way, not one", under_way());
    Landing& landing = landings_[static_cast<size_t>((launched_ - 1) % 2)];
    if (rows.size() != requests.size()) return fail("{} requests for {} rows", requests.size(), rows.size());
    if (rows.empty()) return Ok{};
    const auto words = static_cast<size_t>((config_.vocab + 31) / 32);
    std::vector<int32_t> places;
    std::vector<cuda::SampleRow> list;
    std::vector<cuda::SeenSlot> slots;
    int32_t masks = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
        const TokenRequest& r = requests[i];
        if (rows[i] < 0 || rows[i] >= landing.wanted) return fail("the step has no row {}", rows[i]);
        if (!r.mask.empty() && r.mask.size() != words)
            return fail("a mask of {} words for a vocabulary of {}", r.mask.size(), config_.vocab);
        places.push_back(static_cast<int32_t>(rows[i]));
        list.push_back(cuda::sample_row(r, std::ssize(slots)));
        list.back().mask = r.mask.empty() ? cuda::no_mask : masks++;
        for (const SeenToken& token : r.seen) slots.push_back({token});
    }
    NIBBLE_CHECK(use_device(device_.index));
    if (!deferred_) {
        NIBBLE_TRY(Stream stream, Stream::create(device_.index));
        NIBBLE_TRY(Event arrived, Event::create());
        deferred_ = std::make_unique<Deferred>(Deferred{std::move(stream), std::move(arrived), {}});
    }
    Deferred& d = *deferred_;
    d.upload.clear();
    const int64_t places_at = d.upload.add(std::span<const int32_t>(places));
    const int64_t list_at = d.upload.add(std::span<const cuda::SampleRow>(list));
    const int64_t slots_at = d.upload.add(std::span<const cuda::SeenSlot>(slots));
    int64_t masks_at = -1;
    for (const TokenRequest& r : requests) {
        if (r.mask.empty()) continue;
        const int64_t at = d.upload.add(r.mask);  // mask_pitch() apart: offsets and pitch are multiples of 16 bytes
        if (masks_at < 0) masks_at = at;
    }
    NIBBLE_CHECK(d.upload.send(device_.index, d.stream));
    NIBBLE_CHECK(d.arrived.record(d.stream));
    NIBBLE_CHECK(d.arrived.make_wait(stream_));
    NIBBLE_CHECK(cuda::sample({.rows = std::ssize(rows),
                               .width = config_.vocab,
                               .logits = reinterpret_cast<float*>(const_cast<std::byte*>(landing.logits.data)),
                               .requests = d.upload.at<cuda::SampleRow>(list_at),
                               .seen = d.upload.at<cuda::SeenSlot>(slots_at),
                               .out = tokens_in(landing),
                               .places = d.upload.at<int32_t>(places_at),
                               .masks = masks > 0 ? d.upload.at<uint32_t>(masks_at) : nullptr},
                              false, stream_));
    return landing.done.record(stream_);
}

}  // namespace nibble
