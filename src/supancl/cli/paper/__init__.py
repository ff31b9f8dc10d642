"""`supancl paper toy|theory|collapse|study|table|figure`."""
