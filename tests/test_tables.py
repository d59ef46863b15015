"""Files become tables of numbers and text, whole or a piece at a time; what cannot be read is told why."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bayesrule.data import BadTable, iterate_table, read_table
from bayesrule.data.csv_files import LONGEST_LINE
from bayesrule.errors import InvalidArgument

GOOD = "age,city\n1,Rome\n2,Oslo\n3,Rome\n"


def write(folder: Path, content: str | bytes, name: str = "data.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def people(rows: int = 50) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "height": np.where(rng.random(rows) < 0.2, np.nan, rng.normal(size=rows)),
            "count": rng.integers(0, 9, rows).astype(float),
            "city": pd.Series(rng.choice(["Rome", "São Paulo", 'a "quoted", one', None], rows), dtype="str"),
        }
    )


@pytest.mark.parametrize("name", ["data.csv", "data.tsv", "data.txt", "data.parquet", "data.pq"])
def test_what_pandas_writes_is_read_back_exactly(tmp_path: Path, name: str) -> None:
    frame, path = people(), tmp_path / name
    if name.endswith(("parquet", "pq")):
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if name.endswith("tsv") else ",")
    pd.testing.assert_frame_equal(read_table(path), frame, check_exact=True)


@pytest.mark.parametrize("rows", [1, 7, 50, 1000])
@pytest.mark.parametrize("name", ["data.csv", "data.parquet"])
def test_pieces_are_the_whole(tmp_path: Path, name: str, rows: int) -> None:
    frame, path = people(), tmp_path / name
    frame.to_csv(path, index=False) if name.endswith("csv") else frame.to_parquet(path, row_group_size=13)
    pieces = list(iterate_table(path, rows=rows))
    assert max(map(len, pieces)) <= rows
    assert all(piece.dtypes.equals(pieces[0].dtypes) for piece in pieces)
    pd.testing.assert_frame_equal(pd.concat(pieces), read_table(path), check_exact=True)


def test_a_column_that_turns_to_text_late_is_text_in_every_piece(tmp_path: Path) -> None:
    path = write(tmp_path, "code,x\n" + "".join(f"{row},1\n" for row in range(30)) + "inf,1\nnone of these,1\n")
    pieces = list(iterate_table(path, rows=4))
    assert {str(piece["code"].dtype) for piece in pieces} == {"str"}
    assert pieces[0]["code"].tolist() == ["0", "1", "2", "3"]
    assert pd.concat(pieces)["code"].iloc[30] == "inf"


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_separators_line_ends_and_byte_order_marks(tmp_path: Path, separator: str, end: str, mark: bytes) -> None:
    text = GOOD.replace(",", separator).replace("\n", end)
    frame = read_table(write(tmp_path, mark + text.encode()))
    assert list(frame.columns) == ["age", "city"]
    assert frame["age"].tolist() == [1, 2, 3]
    assert frame["city"].tolist() == ["Rome", "Oslo", "Rome"]


def test_a_bar_in_a_name_does_not_separate(tmp_path: Path) -> None:
    assert list(read_table(write(tmp_path, "a|b|c,d\n1,2\n3,4\n5,6\n")).columns) == ["a|b|c", "d"]


SPELLINGS = ["", " ", "NA", "N/A", "n/a", "NaN", "nan", "-NaN", "null", "NULL", "None", "?", "<NA>", "#N/A", "missing"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_missing_values_have_many_spellings(tmp_path: Path, spelling: str) -> None:
    frame = read_table(write(tmp_path, f"x,y\n1,a\n{spelling},{spelling}\n3, b \n"))
    assert frame["x"].isna().tolist() == [False, True, False]
    assert frame["x"].dtype == np.float64
    assert frame["y"].isna().tolist() == [False, True, False]
    assert frame["y"].tolist()[2] == "b"


def test_numbers_are_read_to_the_last_bit(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=200) * 10.0 ** np.arange(-100, 100)
    frame = read_table(write(tmp_path, "x,y\n" + "".join(f"{value!r},1\n" for value in values.tolist())))
    assert np.array_equal(frame["x"].to_numpy(), values)


def test_digits_with_underscores_are_codes(tmp_path: Path) -> None:
    assert read_table(write(tmp_path, "x,y\n1_0,1\n2_0,2\n3_0,3\n"))["x"].tolist() == ["1_0", "2_0", "3_0"]


def test_kinds_keep_codes_and_refuse_text(tmp_path: Path) -> None:
    path = write(tmp_path, "code,x\n007,1\n08,2\n9,oops\n")
    assert read_table(path, kinds={"code": "text"})["code"].tolist() == ["007", "08", "9"]
    with pytest.raises(BadTable, match=r"Column 'x' .* must hold numbers.*'oops' in line 4"):
        read_table(path, kinds={"x": "number"})


def test_a_fault_at_the_end_is_found_before_the_first_piece(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b\n" + "1,2\n" * 100 + "1,2,3\n")
    with pytest.raises(BadTable, match="Line 102"):
        iterate_table(path, rows=10)


def test_every_type_of_parquet_is_numbers_or_text(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "integer": pd.array([1, None, 3], dtype="Int64"),
            "small": np.array([1.5, 2.5, 3.5], dtype=np.float32),
            "decimal": [Decimal("1.50"), Decimal("2.25"), None],
            "yes": [True, False, True],
            "category": pd.Categorical(["b", None, "a"]),
            "day": pd.to_datetime(["2024-01-02", None, "2024-01-04"]),
            "list": [[1, 2], [3], []],
            "nothing": [None, None, None],
        }
    )
    frame.set_index("integer", drop=False).rename_axis("stored_index").to_parquet(tmp_path / "data.parquet")
    read = read_table(tmp_path / "data.parquet")
    assert list(read.columns) == list(frame.columns)
    np.testing.assert_array_equal(read["integer"], [1.0, np.nan, 3.0])
    np.testing.assert_array_equal(read["small"], [1.5, 2.5, 3.5])
    np.testing.assert_array_equal(read["decimal"], [1.5, 2.25, np.nan])
    assert read["yes"].tolist() == ["True", "False", "True"]
    assert read["category"].isna().tolist() == [False, True, False]
    assert read["day"].tolist()[0] == "2024-01-02 00:00:00"
    assert read["list"].tolist()[1] == "[3]"
    assert read["nothing"].dtype == np.float64


BAD = {
    "empty": (b"", "is empty"),
    "blank lines only": (b"\n\n\r\n", "is empty"),
    "header only": (b"a,b\n", "too few rows.*at least 3.*only a header"),
    "two rows": (b"a,b\n1,2\n3,4\n", "at least 3 are needed.*2 rows"),
    "repeated name": (b"a,b,a\n1,2,3\n1,2,3\n1,2,3\n", "more than one column of the same name.*'a'"),
    "repeated but for blanks": (b"a, a\n1,2\n1,2\n1,2\n", "same name.*'a'"),
    "latin-1": ("a,b\n1,2\n1,caf\xe9\n3,4\n".encode("latin-1"), "UTF-8.*0xe9 as byte 6 of line 3.*UTF-8"),
    "utf-16": (GOOD.encode("utf-16"), "UTF-16.*UTF-8"),
    "long row": (b"a,b\n1,2\n1,2,3\n1,2\n", "Line 3 .* has 3 cells.*names 2 columns"),
    "short row": (b"a,b\n1,2\n1\n1,2\n", "Line 3 .* has 1 cells"),
    "long first row": (b"a,b\n1,2,3\n1,2\n1,2\n", "Line 2 .* has 3 cells"),
    "open quote": (b'a,b\n1,2\n1,"2\n1,2\n', "not well-formed"),
    "text after a quote": (b'a,b\n1,2\n1,"2"x\n1,2\n', "Line 3 .* not well-formed"),
    "zero byte": (b"a,b\n1,2\n1,\x00\n1,2\n", "not a text file.*zero byte in line 3"),
    "old line ends": (b"a,b\r1,2\r3,4\r5,6\r", "not well-formed"),
    "a workbook": (b"PK\x03\x04" + b"\x00" * 50, "spreadsheet.*CSV"),
    "compressed": (b"\x1f\x8b" + b"\x00" * 50, "gzip"),
    "no header": (b"1.5,2\n3,4\n5,6\n7,8\n", "no header.*1.5, 2"),
    "infinity": (b"a,b\n1,2\n3,-inf\n5,6\n", "'b' .* infinite.*-inf in line 3"),
    "overflow": (b"a,b\n1,2\n3,1e999\n5,6\n", "'b' .* infinite.*inf in line 3"),
    "too large": (b"a,b\n1,2\n3,1e200\n5,6\n", "'b' .* too large.*1e\\+200 in line 3"),
    "huge cell": (b'a,b\n1,2\n3,"' + b"x" * 200_000 + b'"\n5,6\n', "field larger than"),
    "huge line": (b"x" * LONGEST_LINE, "not a text file.*no line end"),
    "parquet by content": (b"PAR1 and then nothing", "not a readable parquet file"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_told_from_each_other(tmp_path: Path, name: str) -> None:
    content, message = BAD[name]
    with pytest.raises(BadTable, match=f"(?s){message}"):
        read_table(write(tmp_path, content))


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadTable, match="There is no file"):
        read_table(tmp_path / "nowhere.csv")
    with pytest.raises(BadTable, match="is a folder"):
        read_table(tmp_path)
    with pytest.raises(BadTable, match=r"no known extension. Got: \.xml.*\.csv"):
        read_table(write(tmp_path, GOOD, "data.xml"))
    with pytest.raises(BadTable, match="one row at a time"):
        iterate_table(write(tmp_path, GOOD), rows=0)


def test_damaged_parquet(tmp_path: Path) -> None:
    frame, path = people(), tmp_path / "data.parquet"
    frame.to_parquet(path)
    whole = path.read_bytes()
    for damaged in (whole[:-30], whole[:100], b"PAR1" + b"\x00" * 40 + b"PAR1", b"junk" * 9, whole[:40] + whole[60:]):
        path.write_bytes(damaged)
        with pytest.raises(BadTable):
            read_table(path)


def test_infinities_in_parquet_name_their_row(tmp_path: Path) -> None:
    people().assign(height=[*[0.0] * 40, np.inf, *[0.0] * 9]).to_parquet(tmp_path / "data.parquet")
    with pytest.raises(BadTable, match=r"'height' .* inf in row 41"):
        read_table(tmp_path / "data.parquet")


def test_prediction_needs_one_row_only(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b\n1,2\n")
    assert [len(piece) for piece in iterate_table(path)] == [1]
    with pytest.raises(InvalidArgument, match="only a header"):
        iterate_table(write(tmp_path, "a,b\n"))


def test_an_unnamed_column_and_numbered_columns(tmp_path: Path) -> None:
    frame = pd.DataFrame(np.arange(12.0).reshape(4, 3))
    frame.to_csv(tmp_path / "indexed.csv")
    assert list(read_table(tmp_path / "indexed.csv").columns) == ["Unnamed: 0", "0", "1", "2"]
    frame.to_csv(tmp_path / "plain.csv", index=False)
    assert list(read_table(tmp_path / "plain.csv").columns) == ["0", "1", "2"]
