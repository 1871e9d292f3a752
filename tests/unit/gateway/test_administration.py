"""POST /v1/qserve/restart where there is nothing to begin: 409 says why."""

from __future__ import annotations

import pytest

from qserve.gateway.administration import Administration
from qserve.wire.errors import ApiError


class AnyKey:
    async def check(self, scope, told):
        pass


@pytest.mark.parametrize(("names", "code"), [(None, "restart_under_way"), ((), "none_ready")])
async def test_a_restart_that_does_not_begin(names, code):
    administration = Administration(AnyKey(), lambda: names)
    with pytest.raises(ApiError) as refused:
        await administration.restart({}, None, None)
    assert (refused.value.status, refused.value.code) == (409, code)
