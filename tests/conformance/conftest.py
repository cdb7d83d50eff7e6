import pytest

pytest.register_assert_rewrite("farro.providers.conformance")
