"""Detection data as published: the VOC2012 subset."""

import zipfile

from supancl.detection.scenes import DetectData, open_scenes


def test_the_voc_subset_opens(shared, tmp_path):
    with zipfile.ZipFile(shared / "data" / "voc2012_mini_s192.zip") as archive:
        archive.extractall(tmp_path)
    root = next(folder.parent for folder in tmp_path.rglob("VOC2012"))
    train, test = open_scenes(DetectData(str(root), "2012"))
    assert (len(train), len(test), len(train.classes)) == (800, 400, 20)
    assert min(train.image(0).shape[1:]) == 192
    assert train.classes[0] == "aeroplane"
    assert train.classes[-1] == "tvmonitor"
    assert sum(int(each.difficult.sum()) for each in (*train.scenes, *test.scenes)) > 100
