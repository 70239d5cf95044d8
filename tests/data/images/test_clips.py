"""Clips: stamps that move as their class says, the user's videos, and a task that reads both."""

import re
import sys

import numpy as np
import pytest

from tests import tiny
from tests.data.images.test_boxes import write_stamps
from transformer_lab.data.images.augment import AugmentConfig, augment, mix
from transformer_lab.data.images.sources import ImageConfig, load_images
from transformer_lab.data.images.video import read_clip
from transformer_lab.data.sources import video_tiles
from transformer_lab.data.sources.moving_stamps import MOTIONS
from transformer_lab.errors import LabError

STAMPS = {"source": "moving_stamps", "frames": 5, "size": (64, 64), "clips": 48, "held_clips": 16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of stamps, green ellipses, and photographs, with a cache of its own."""
    place = tmp_path_factory.mktemp("stamps")
    write_stamps(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRANSFORMER_LAB_CACHE", str(place / "cache"))
        yield place


def states(clip):
    """Of each frame: the mean column and row of the stamp's pixels, its longer axis's angle in
    degrees, clockwise, and its area."""
    found = []
    for frame in clip:
        rows, columns = np.nonzero(frame[..., 1] > 127)
        (xx, xy), (_, yy) = np.cov(columns, rows)
        angle = np.rad2deg(np.arctan2(2 * xy, xx - yy)) / 2
        found.append((columns.mean(), rows.mean(), angle, len(rows)))
    return np.array(found)


def test_a_stamp_moves_as_its_class_says_and_in_no_other_way(folder):
    data = load_images(ImageConfig(path=str(folder), **STAMPS))
    assert data.labels == list(MOTIONS) and len(data.train) == 48 and len(data.test) == 16
    assert data.train.labels == 6 * list(range(8))
    whole = 0
    for part, count in ((data.train, 48), (data.validation, 16)):
        for i in range(count):
            row = part[i]
            np.testing.assert_array_equal(row["image"], part[i]["image"])
            assert row["image"].shape == part.shape == (5, 64, 64, 3)
            change = np.diff(states(row["image"]), axis=0)
            change[:, 2] = (change[:, 2] + 90) % 180 - 90  # an axis has no direction
            kinds = [0, 0, 1, 1, 2, 2, 3, 3]
            own, sign = kinds[row["label"]], [-1, 1, -1, 1, 1, -1, 1, -1][row["label"]]
            assert (sign * change[:, own] > 0).all(), (i, change)
            total = change.sum(axis=0)
            green = row["image"][..., 1] > 127
            if green[:, [0, -1]].any() or green[:, :, [0, -1]].any():
                continue  # a part is outside
            whole += 1
            area = total[3] / states(row["image"])[0, 3]
            # Half to all of the motion, and hardly any of the others.
            if own == 3:
                assert 0.9 < sign * np.log(area + 1) < 2.1  # the square of the size
            else:
                assert 0.48 < sign * total[own] / [38.4, 38.4, 120][own] < 1.02
            still = np.abs([*total[:2] / 2, total[2] / 6, area / 0.05]) < 1
            assert np.delete(still, own).all(), (i, total)
    assert whole > 30
    one = ImageConfig(path=str(folder), **STAMPS | {"frames": 1})
    first = load_images(one).train[3]["image"]
    np.testing.assert_array_equal(first, data.train[3]["image"][:1])


def test_no_stamp_or_photograph_of_a_split_is_in_another(folder):
    data = load_images(ImageConfig(path=str(folder), **STAMPS))
    seen = []
    for split in (data.train, data.validation, data.test):
        clips = split._items
        colours = {x.getpixel((x.width // 2, x.height // 2)) for x in clips.cutouts}
        seen.append((colours, {np.asarray(x)[0, 0, 2] for x in clips.photographs}))
    assert [len(colours) for colours, _ in seen] == [20, 2, 2]
    assert [len(blues) for _, blues in seen] == [2, 1, 1]
    for k in (0, 1):
        assert len(set.union(*(some[k] for some in seen))) == sum(len(some[k]) for some in seen)
    other = ImageConfig(path=str(folder), **STAMPS | {"clips": 40})
    assert load_images(other).fingerprint() != data.fingerprint()


def test_clips_where_images_are_wanted_and_images_where_clips_are_are_refused(folder):
    with pytest.raises(LabError, match="config.data.frames = 0: moving_stamps makes clips"):
        load_images(ImageConfig(path=str(folder), **STAMPS | {"frames": 0}))
    with pytest.raises(LabError, match="config.data.frames = 4, but the source has images"):
        load_images(ImageConfig(source="digits", frames=4))
    for model, frames, words in (
        ("vision", 4, "frames = 4 .*vision"),
        ("video", 0, "frames = 0 .*video"),
    ):
        with pytest.raises(LabError, match=words):
            tiny.make_trainer(task_config(folder, model, data__frames=frames), 1)


def test_all_frames_of_a_clip_are_augmented_alike():
    clip = np.random.default_rng(0).integers(256, size=(3, 6, 8, 3), dtype=np.uint8)
    clip[1] = clip[0]
    config = AugmentConfig(crop_padding=2, flip=0.5, erase=0.5)
    for draw in range(6):
        found = augment(clip, draw, config)
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_array_equal(found[2], augment(clip[2], draw, config))
    two, labels = np.stack([0 * clip, 0 * clip + 200]), np.eye(2, dtype=np.float32)
    mixed, shares = mix(two, labels, np.array([5, 6]), AugmentConfig(cutmix=1.0))
    assert (mixed == mixed[:, :1]).all()  # the same rectangle in each frame
    np.testing.assert_allclose((mixed > 0).mean(axis=(1, 2, 3, 4)), shares[:, 1], atol=1e-6)


def task_config(folder, model="video", **changes):
    sizes = {"model.patch_size": (16, 16), "model.pooling": "mean", "data.path": str(folder),
             "batch.rows": 12, "task.mean": (0.5,) * 3, "task.std": (0.5,) * 3}  # fmt: skip
    stamps = {f"data.{name}": value for name, value in STAMPS.items()}
    stamps |= {"data.size": (32, 32), "data.frames": 4}
    return tiny.config_of(model, "image_classification", tiny.RUN, tiny.STACK, sizes, stamps,
                          **changes)  # fmt: skip


def test_the_task_of_images_trains_scores_and_keeps_a_model_of_clips(folder):
    trainer = tiny.make_trainer(task_config(folder, model__temporal_layers=1), 1)
    task = trainer.task
    assert (task.model_config.frames, task.model_config.classes) == (4, 8)
    batch = tiny.first_batch(task)
    assert {k: (x.shape, x.dtype) for k, x in batch.items()} == {
        k: (x.shape, x.dtype) for k, x in task.abstract_batch().items()
    }
    params, losses = tiny.trained(trainer, 2)
    assert np.isfinite(losses).all()
    values = trainer.evaluate(params, "test")
    assert set(values) >= {"loss", "accuracy", "top_5"}
    assert task.score(params, "test", trainer.place, True).values == {"num_examples": 16.0}
    assert b'"frames": 4' in task.assets()["images.json"]


def test_scenes_pan_and_their_middle_frame_is_half_way(folder):
    scenes = {**STAMPS, "source": "moving_scenes", "frames": 3}
    data = load_images(ImageConfig(path=str(folder), **scenes))
    assert data.labels == ["moving"] and data.train.shape == (3, 64, 64, 3)
    away, moved = [], []
    for i in range(48):
        clip = data.train[i]["image"]
        np.testing.assert_array_equal(clip, data.train[i]["image"])
        green = clip[..., 1] > 127
        if green[:, [0, -1]].any() or green[:, :, [0, -1]].any():
            continue  # a part is outside
        places = states(clip)[:, :2]
        away.append(np.abs(places[1] - places[[0, 2]].mean(axis=0)).max())
        moved.append(np.abs(places[2] - places[0]).max())
    assert len(away) > 2 and np.median(away) < 0.2 and np.median(moved) > 0.5


def test_a_model_of_frames_begins_with_the_mean_of_both_neighbours(folder):
    stamps = {f"data.{name}": value for name, value in STAMPS.items()}
    stamps |= {"data.source": "moving_scenes", "data.frames": 3, "data.path": str(folder)}
    sizes = {"model.image_size": (16, 16), "model.patch_size": (8, 8), "model.codes": 0,
             "task.between": 3, "batch.rows": 8}  # fmt: skip
    small = tiny.RUN | tiny.STACK | tiny.FAST
    config = tiny.config_of("vqvae", "image_prediction", small, sizes, stamps)
    trainer = tiny.make_trainer(config, 1)
    shapes = {k: (x.shape, x.dtype) for k, x in trainer.task.abstract_batch().items()}
    assert {k: (x.shape, x.dtype) for k, x in tiny.first_batch(trainer.task).items()} == shapes
    params, _ = tiny.trained(trainer, 0)
    values = trainer.evaluate(params, "test")
    assert values["psnr"] == pytest.approx(values["psnr_given"], abs=1e-3)
    assert 10 < values["psnr"] < 50 and values["ssim"] == pytest.approx(values["ssim_given"])
    trained = trainer.evaluate(tiny.trained(trainer, 3)[0], "test")
    assert abs(trained["psnr"] - trained["psnr_given"]) > 1e-3
    by_class = trainer.task.by_class([0, 0], {"psnr": [np.array([10.0, 20.0])]})
    assert by_class == {"moving_psnr": pytest.approx(-10 * np.log10(0.055))}
    config.data.frames = 4
    with pytest.raises(LabError, match="frames = 4: task.between = 3 needs 3"):
        tiny.make_trainer(config, 1)


# Videos of the user's own.


def write_video(path, frames, codec="libx264"):
    """A video of 32 x 48 pixels whose frame i has the grey level 20 * i."""
    library = pytest.importorskip("imageio_ffmpeg")
    writer = library.write_frames(str(path), (48, 32), fps=10, codec=codec, quality=9)
    writer.send(None)
    for i in range(frames):
        writer.send(np.full((32, 48, 3), 20 * i, np.uint8).tobytes())
    writer.close()


def test_a_clip_has_the_middle_frames_of_equal_parts_of_a_video(tmp_path):
    write_video(tmp_path / "a.mp4", 12)
    clip = read_clip(tmp_path / "a.mp4", 4, size=(16, 16))
    assert clip.shape == (4, 16, 16, 3)
    np.testing.assert_allclose(clip.mean(axis=(1, 2, 3)), [20, 80, 140, 200], atol=4)
    clip = read_clip(tmp_path / "a.mp4", 12, channels=1)
    assert clip.shape == (12, 32, 48, 1)
    np.testing.assert_allclose(clip.mean(axis=(1, 2, 3)), 20 * np.arange(12), atol=4)


def test_folders_of_videos_are_classes_and_a_bad_file_is_named(tmp_path):
    for name in ("run", "walk"):
        (tmp_path / name).mkdir()
        for k in range(4):
            write_video(tmp_path / name / f"{k}.mp4", 6 + k)
    config = {"source": "folders", "path": str(tmp_path), "frames": 6, "size": (16, 16),
              "validation_share": 0.25, "test_share": 0.25}  # fmt: skip
    data = load_images(ImageConfig(**config))
    assert data.labels == ["run", "walk"] and data.report["read"] == 8
    assert [len(x) for x in (data.train, data.validation, data.test)] == [4, 2, 2]
    assert data.train[0]["image"].shape == (6, 16, 16, 3)
    write_video(tmp_path / "run" / "short.mp4", 3)
    short = re.escape(str(tmp_path / "run" / "short.mp4"))
    with pytest.raises(LabError, match=f"{short} has 3 frames, a clip needs 6.*skip_damaged"):
        load_images(ImageConfig(**config))
    whole = (tmp_path / "run" / "3.mp4").read_bytes()
    for content, words in ((b"", "cannot"), (b"no video", "cannot"), (whole[:300], "cannot")):
        (tmp_path / "run" / "short.mp4").write_bytes(content)
        with pytest.raises(LabError, match=f"{short}.*{words}"):
            load_images(ImageConfig(**config))
    found = load_images(ImageConfig(**config, skip_damaged=True))
    assert found.report["damaged"] == 1 and found.report["read"] == 9


def test_tiles_are_of_consecutive_frames_and_later_runs_are_held_out(tmp_path):
    write_video(tmp_path / "a.mp4", 10)
    runs = video_tiles.runs_of(tmp_path / "a.mp4", 3, 2)
    found = [run.mean(axis=(1, 2, 3)).round() for run in runs]
    np.testing.assert_allclose(found, [[0, 20, 40], [100, 120, 140]], atol=4)
    numbers = np.repeat(np.arange(6, dtype=np.uint8).reshape(1, 2, 3, 1), 3, axis=3)
    tiles = video_tiles.tiles(numbers, 1, 2)
    assert [tile[..., 0].ravel().tolist() for tile in tiles] == [[0, 1], [3, 4]]
    config = {"source": "video_tiles", "path": str(tmp_path), "frames": 3, "size": (16, 24),
              "held_clips": 3, "validation_share": 0.0, "test_share": 0.34}  # fmt: skip
    data = load_images(ImageConfig(**config))
    assert [len(x) for x in (data.train, data.validation, data.test)] == [8, 0, 4]
    assert data.labels == ["a"] and data.test[0]["image"].mean(axis=(1, 2, 3))[0] > 100
    with pytest.raises(LabError, match="10 frames, fewer than config.data.frames = 11"):
        load_images(ImageConfig(**config | {"frames": 11}))


def test_without_the_library_a_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(LabError, match="videos need `pip install imageio-ffmpeg`"):
        read_clip(tmp_path / "a.mp4", 4)
