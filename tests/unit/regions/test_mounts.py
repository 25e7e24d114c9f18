from controllers.regions import mounts

LINE = r"36 35 0:57 / /a/with\040blank rw,nosuid shared:1 - tmpfs tenure:ns/pod/uid_c rw,size=1024k"


def test_a_line_of_mountinfo_is_taken_apart() -> None:
    (found,) = mounts.parse(LINE + "\n")
    assert found == mounts.Mount("0:57", "/", "/a/with blank", "tmpfs", "tenure:ns/pod/uid_c")
    assert found.serves == "ns/pod/uid_c"


def test_optional_fields_may_be_missing_or_many() -> None:
    lines = [
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw",
        "2 1 0:5 / /proc rw shared:2 master:3 unbindable - proc proc rw",
    ]
    assert [m.kind for m in mounts.parse("\n".join(lines))] == ["ext4", "proc"]
    assert [m.serves for m in mounts.parse("\n".join(lines))] == [None, None]


def test_what_is_no_line_is_skipped() -> None:
    assert mounts.parse("nonsense\n\n1 2 3\n") == []


def test_a_path_is_escaped_as_the_kernel_does() -> None:
    assert mounts.escaped("/a b\t\n\\") == r"/a\040b\011\012\134"


def test_our_own_mounts_are_read() -> None:
    assert any(mount.point == "/proc" and mount.kind == "proc" for mount in mounts.own())
